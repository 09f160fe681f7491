"""Runs are read one at a time, in a thread of their own: what a page asks for first, then all others.

The thread ends when there is nothing to do. A server that ends interrupts what it does at its next
progress, so no index is left half made.
"""

from __future__ import annotations

import sys
from collections import deque
from threading import ExceptHookArgs, Lock, Thread, current_thread, excepthook
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME: Final = "runs in the background"
PATIENCE_S: Final = 3.0  # within which a reading comes to its next progress, nearly always

_Thing = TypeVar("_Thing")


class Interrupted(Exception):
    """Raised in what is being read when the server ends."""


class Worker(Generic[_Thing]):
    """Works on things in turn; `backlog` is what is left of those that no page waits for.

    What `work` raises is printed, and the next one follows.
    """

    def __init__(self, work: Callable[[_Thing], None]) -> None:
        self._work = work
        self._lock = Lock()
        self._urgent: deque[_Thing] = deque()
        self._backlog: deque[_Thing] = deque()
        self._thread: Thread | None = None
        self._closed = False

    @property
    def backlog(self) -> list[_Thing]:
        """What is to be worked on when nothing is asked for, in order."""
        with self._lock:
            return list(self._backlog)

    def add_urgent(self, thing: _Thing) -> None:
        """Work on something as soon as possible."""
        with self._lock:
            self._urgent.append(thing)
            self._begin()

    def replace_backlog(self, things: Iterable[_Thing]) -> None:
        """Replace what is worked on when nothing is asked for."""
        with self._lock:
            self._backlog = deque(things)
            self._begin()

    def raise_if_closed(self) -> None:
        """Let what is being worked on end if the server does.

        Raises:
            Interrupted: it is to end now.
        """
        if self._closed:
            raise Interrupted

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Begin nothing any more, and wait for what is going on; return whether that ended."""
        with self._lock:
            self._closed = True
            self._urgent.clear()
            self._backlog.clear()
            thread = self._thread
        if thread is None:
            return True
        thread.join(patience_s)
        return not thread.is_alive()

    def _begin(self) -> None:
        waiting = self._urgent or self._backlog
        if waiting and self._thread is None and not self._closed:
            self._thread = Thread(target=self._go_on, name=NAME, daemon=True)
            self._thread.start()

    def _go_on(self) -> None:
        for thing in iter(self._next, None):
            try:
                self._work(thing)
            except Exception:  # noqa: BLE001 - the others are to be worked on nevertheless
                excepthook(ExceptHookArgs((*sys.exc_info(), current_thread())))

    def _next(self) -> _Thing | None:
        with self._lock:
            queue = self._urgent or self._backlog
            if not queue or self._closed:
                self._thread = None
                return None
            return queue.popleft()
