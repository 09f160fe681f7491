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
from tracelens_instrument.core.environment import DIRECTORY_VARIABLE, RATE_VARIABLE
from tracelens_instrument.core.failures import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["begin"]

_SET_PTRACER: Final = 0x59616D61  # of prctl: who, besides its ancestors, may look into this process
_PATIENCE_S: Final = 10
_HOOKS_VARIABLE: Final = "TRACELENS_HOOKS"


def begin(pid: int, directory: Path, name: str) -> Callable[[], object] | None:
    """Start sampling this process and its children.

    It returns once stacks are sampled, or cannot be.

    Returns:
        What to call before the recording ends.
    """
    try:
        sampler = _start_sampler(pid, directory / SAMPLES_FOLDER / f"{name}{TRACE_SUFFIX}")
    except OSError as error:
        warn_once(f"stacks are not sampled, the training goes on ({error})")
        return None
    with contextlib.suppress(OSError, AttributeError):  # only some kernels ask, and only on Linux
        ctypes.CDLL(None).prctl(_SET_PTRACER, sampler.pid, 0, 0, 0)
    _await_first_sample(sampler)
    return lambda: _await_samples(sampler)


def _start_sampler(pid: int, samples_path: Path) -> subprocess.Popen[bytes]:
    """Start the process that samples stacks, at the rate that the environment says."""
    arguments = [str(pid), os.environ[RATE_VARIABLE], str(samples_path)]
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


def _await_first_sample(sampler: subprocess.Popen[bytes]) -> None:
    """Wait for the first sample, so that a short training is sampled from its begin, too."""
    assert sampler.stdout
    with sampler.stdout as output:
        select.select([output], [], [], _PATIENCE_S)


def _await_samples(sampler: subprocess.Popen[bytes]) -> None:
    """Wait until the samples are written: a launcher may end everything as soon as this process ends."""
    assert sampler.stdin
    sampler.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        sampler.wait(_PATIENCE_S)
