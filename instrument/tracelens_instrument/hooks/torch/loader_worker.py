"""In a worker process of a DataLoader: report to the training process when each batch was fetched.

A worker writes no files of its own, and nothing is added to its batches: it sends two times a batch
through a pipe, in one write that never blocks. It needs the standard library and PyTorch only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import FrameType

__all__ = ["BATCH_REPORT", "ReportingWorker"]

BATCH_REPORT: Final = struct.Struct("=4q")  # worker, batch, begin and end in ns


class ReportingWorker:
    """Initializes a worker in the place of the user's function, which it calls.

    It is pickled to workers that are spawned, and the user's function with it, as ever.
    """

    def __init__(self, users: Callable[[int], object] | None, pipe: Connection) -> None:
        self._users = users
        self._pipe = pipe

    def __call__(self, worker: int) -> None:
        """Begin a worker."""
        with contextlib.suppress(Exception):  # whatever fails here, batches must come
            _patch_fetchers(self._pipe, worker)
        if self._users is not None:
            self._users(worker)


def _patch_fetchers(pipe: Connection, worker: int) -> None:
    """Let this worker report each batch that it fetches through a pipe."""
    from torch.utils.data._utils import fetch  # noqa: PLC0415 - only workers need it
    from torch.utils.data._utils import worker as loop  # noqa: PLC0415

    os.set_blocking(pipe.fileno(), False)
    report = functools.partial(_report, pipe, worker, loop._worker_loop.__code__)  # noqa: SLF001 - nothing public has it
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001 - nor these
        _patch_fetcher(fetcher, report)


def _patch_fetcher(fetcher: Any, report: Callable[[FrameType | None, int], None]) -> None:
    """Let a class of PyTorch's call `report` after each fetch, with the caller's frame and the begin."""
    original = fetcher.fetch

    @functools.wraps(original)
    def fetch(self: Any, index: Any) -> Any:
        begin_ns = monotonic_ns()
        batch = original(self, index)
        report(sys._getframe(1), begin_ns)  # noqa: SLF001 - no other way
        return batch

    fetcher.fetch = fetch


def _report(
    pipe: Connection, worker: int, loop_code: object, caller: FrameType | None, begin_ns: int
) -> None:
    """Report a batch, whose number the worker's loop knows; a loader inside a dataset has none."""
    if caller is None or caller.f_code is not loop_code:
        return
    batch_number = caller.f_locals.get("idx")
    if isinstance(batch_number, int):
        with contextlib.suppress(OSError):  # the reader has ended
            os.write(
                pipe.fileno(), BATCH_REPORT.pack(worker, batch_number, begin_ns, monotonic_ns())
            )
