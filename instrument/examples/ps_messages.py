"""What workers and shards of the parameter-server example send each other.

A request is a header of three integers, tag `HEADER`: what (PULL, PUSH, DONE), the step, the request
id. A push's gradient and a pull's answer follow with tag `PAYLOAD`.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

HEADER: Final = 1
PAYLOAD: Final = 2
PULL, PUSH, DONE = range(3)
POLL_S: Final = 50e-6

Header = npt.NDArray[np.int64]


def header(what: int, step: int, request: int) -> Header:
    """Build a request's header."""
    return np.array([what, step, request], np.int64)


def await_(request: Any, status: Any = None) -> None:
    """Await an MPI request without burning the core that somebody else computes on."""
    while not request.Test(status):
        time.sleep(POLL_S)
