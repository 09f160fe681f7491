"""Lowest priority for a process: processor, disk and memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["lower_priority"]

_LOWEST_PRIORITY: Final = 19
_OOM_SCORE: Final = "1000"  # when memory runs out
_AUTOGROUP_FILE: Final = Path("/proc/self/autogroup")
_TRY_COUNT: Final = 20
_APART_S: Final = (
    0.11  # of all processes of the machine, one a tenth of a second may change its group
)


def lower_priority() -> None:
    """Give this process a session of its own, and the lowest priority.

    Linux gives every session its share of the processors (sched(7), autogroup), and `nice` counts only
    within one: so the session steps back, too.
    """
    os.setsid()
    os.nice(_LOWEST_PRIORITY)
    # Not SCHED_IDLE: on a machine that is busy all the time that would mean never.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    _lower_session_priority()


def _lower_session_priority() -> None:
    for _ in range(_TRY_COUNT):
        try:
            _AUTOGROUP_FILE.write_text(str(_LOWEST_PRIORITY))
        except BlockingIOError:
            time.sleep(_APART_S)
        except OSError:  # no such groups here
            return
        else:
            return
