"""Locks and threads that cost nothing to import, for what the recorder needs at its start.

For type checkers they are those of `threading`, which takes 3 ms to import with what it needs.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from threading import Lock, RLock, get_native_id, local
else:
    import _thread

    Lock, RLock, get_native_id = _thread.allocate_lock, _thread.RLock, _thread.get_native_id
    local = _thread._local  # noqa: SLF001 - what threading.local is

__all__ = ["Lock", "RLock", "current", "get_native_id", "local"]


def current() -> tuple[str, bool]:
    """Return the calling thread's name, and whether Python did not start it."""
    threading = sys.modules.get("threading")
    if threading is None:  # whoever starts threads has loaded it
        main = get_native_id() == os.getpid()
        return ("MainThread", False) if main else ("Dummy", True)
    thread = threading.current_thread()
    return thread.name, isinstance(thread, threading._DummyThread)  # noqa: SLF001 - nothing public has it
