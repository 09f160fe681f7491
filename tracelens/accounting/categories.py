"""Categories of a worker's time, and codes of its spans.

`_sweep.c` goes by the same numbers.
"""

from __future__ import annotations

from typing import Final

# Own work first (by kind), then what the rank waited for, then what is left.
CATEGORIES: Final = (
    "data",
    "forward",
    "backprop",
    "update",
    "checkpoint",
    "gc",
    "user",
    "wait",  # in a collective (or blocked on one in flight) that not all ranks have entered
    "ps_queue",  # a request is in a parameter server's queue, or waits for later pushes; or a barrier
    "transfer",  # communication that all have entered and nothing hides
    "idle",  # no work, with a recorded cause
    "uninstrumented",  # the thread's own time, which no span covers
)
COMPUTE_CATEGORIES: Final = CATEGORIES[:7]  # that spans name
USER: Final = CATEGORIES.index("user")
WAIT: Final = CATEGORIES.index("wait")
PS_QUEUE: Final = CATEGORIES.index("ps_queue")
TRANSFER: Final = CATEGORIES.index("transfer")
IDLE: Final = CATEGORIES.index("idle")
UNINSTRUMENTED: Final = CATEGORIES.index("uninstrumented")
# Between communication a rank is at work, whether a span says at what or not (POP and Scalasca define
# useful time so).
OWN_CATEGORIES: Final = (*COMPUTE_CATEGORIES, CATEGORIES[UNINSTRUMENTED])
# What a span may say beside a category: communication of a kind yet to be found out; and blocking
# on something, which is that something's category, or a wait if nothing else is recorded.
COMMUNICATION: Final = 100  # code: a span of communication, not yet wait or transfer [definition]
BLOCKED: Final = 101  # code: a span in which the thread is blocked [definition]
# code: beyond it are the categories of spans that only queue work for a device [definition]
QUEUED: Final = 200
NOTHING: Final = -1  # code: no span [definition]
