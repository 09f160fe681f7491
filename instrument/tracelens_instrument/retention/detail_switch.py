"""More detail on request: a recording looks for ``detail.request`` in its trace folder.

`tracelens detail` writes this file. A recording looks once a second, between two steps, whether it is
there. All ranks begin and end at the wall times that it names, so in the same step, or one apart.
"""

from __future__ import annotations

import os
import time

from tracelens.schema.detail import REQUEST_FILE, read_request
from tracelens_instrument.core.clock import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Final

    from tracelens.schema.detail import DetailRequest

__all__ = ["DetailSwitch"]

_LOOK_EVERY_NS: Final = 10**9


class DetailSwitch:
    """Calls `change` with a request when it begins, and with None when it ends or is withdrawn."""

    def __init__(
        self, directory: Path, change_detail: Callable[[DetailRequest | None], object]
    ) -> None:
        """Prepare to look for requests in a folder; `change_detail` gets a new one, or None."""
        self._directory = directory
        self._request_path = str(directory / REQUEST_FILE)
        self._change_detail = change_detail
        self._look_due_ns = 0
        self._file_identity: tuple[int, int] | None = None  # inode and time of change
        self._detail_request: DetailRequest | None = None
        self._wall_minus_monotonic_ns = 0
        self._is_on = False

    def at_step_boundary(self, moment_ns: int) -> int:
        """Begin or end what is requested, if it is time; return the monotonic time of the next call."""
        if moment_ns >= self._look_due_ns:
            self._look_due_ns = moment_ns + _LOOK_EVERY_NS
            self._look()
        request = self._detail_request
        if request is None:
            return self._look_due_ns
        begin_ns = request.begin_ns - self._wall_minus_monotonic_ns
        end_ns = request.end_ns - self._wall_minus_monotonic_ns
        if moment_ns >= end_ns:
            self._end()
            return self._look_due_ns
        if moment_ns >= begin_ns and not self._is_on:
            self._is_on = True
            self._change_detail(request)
        return min(self._look_due_ns, end_ns if self._is_on else begin_ns)

    def _look(self) -> None:
        """Read the request if its file has changed; end the present one if it has, or is gone."""
        try:
            status = os.stat(self._request_path)  # noqa: PTH116 - a call every second in trainings
        except OSError:
            identity = None
        else:
            identity = (status.st_ino, status.st_mtime_ns)
        if identity == self._file_identity:
            return
        self._file_identity = identity
        self._end()
        if identity is not None:
            self._detail_request = read_request(self._directory)
            self._wall_minus_monotonic_ns = time.time_ns() - now()

    def _end(self) -> None:
        self._detail_request = None
        if self._is_on:
            self._is_on = False
            self._change_detail(None)
