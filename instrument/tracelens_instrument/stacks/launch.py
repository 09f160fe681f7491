"""In the rank: start the process that samples its stacks, and wait for it at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tracelens.schema.vocabulary import SAMPLES_FOLDER, TRACE_SUFFIX
from tracelens_instrument.core.environment import DIRECTORY_VARIABLE
from tracelens_instrument.core.failures import warn_once

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Sampler", "begin"]

_SET_PTRACER: Final = 0x59616D61  # of prctl: who, besides its ancestors, may look into this process
_PATIENCE_S: Final = 10
_HOOKS_VARIABLE: Final = "TRACELENS_HOOKS"


class Sampler:
    """The process that samples the stacks of this one and its children."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def await_first_sample(self) -> None:
        """Wait for the first sample, so that a short training is sampled from its begin, too."""
        assert self._process.stdout
        select.select([self._process.stdout], [], [], _PATIENCE_S)
        self._process.stdout.close()

    def stop(self) -> None:
        """Let py-spy end, and write its samples meanwhile."""
        assert self._process.stdin
        self._process.stdin.close()

    def finish(self) -> None:
        """Wait until the samples are written: a launcher may end all as soon as this process ends."""
        self.stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)


def begin(
    pid: int, directory: Path, name: str, *, sampling_hz: int, duration_s: float | None = None
) -> Sampler | None:
    """Start sampling this process and its children, for some seconds or until it ends.

    Without `duration_s` it returns once stacks are sampled, or cannot be; else immediately. It returns
    None if sampling cannot begin.
    """
    samples_path = directory / SAMPLES_FOLDER / f"{name}{TRACE_SUFFIX}"
    arguments = [str(pid), str(sampling_hz), str(samples_path)]
    try:
        process = _start_process(arguments if duration_s is None else [*arguments, str(duration_s)])
    except OSError as error:
        warn_once(f"stacks are not sampled, the training goes on ({error})")
        return None
    with contextlib.suppress(OSError, AttributeError):  # only some kernels ask, and only on Linux
        ctypes.CDLL(None).prctl(_SET_PTRACER, process.pid, 0, 0, 0)
    sampler = Sampler(process)
    if duration_s is None:
        sampler.await_first_sample()
    return sampler


def _start_process(arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start the process that samples stacks, with the arguments of `sampler`."""
    # It is no rank: nothing of it is to be recorded.
    hidden_variables = (DIRECTORY_VARIABLE, _HOOKS_VARIABLE)
    environment = {
        name: value for name, value in os.environ.items() if name not in hidden_variables
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tracelens_instrument.stacks.sampler", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
