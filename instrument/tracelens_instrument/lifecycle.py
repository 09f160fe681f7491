"""Begin and end of a recording: on request, by environment, in forked children, at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens.schema.host import process_started_ns
from tracelens_instrument.failures import warn_once
from tracelens_instrument.identity import PARENT_VARIABLE, Identity, identify, launcher_of
from tracelens_instrument.recording import Recording
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.state import NO_STEP, STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_instrument.segments import Segment

__all__ = ["DIRECTORY_VARIABLE", "begin", "end", "first_use", "on_stop", "wait_for_first_use"]

DIRECTORY_VARIABLE: Final = "TRACELENS_DIR"

_LOCK: Final = [threading.RLock()]  # in a list, because a forked child needs a fresh one
_callbacks: list[Callable[[], object]] = []
_replaced: dict[str, str | None] = {}


def begin(directory: Path | None, given: Mapping[str, Any]) -> None:
    """Open a recording now."""
    with _LOCK[0]:
        if STATE.recording is not None:
            if directory is not None and directory.resolve() != STATE.recording.directory:
                warn_once(
                    f"already recording to {STATE.recording.directory}, "
                    f"so start({str(directory)!r}) was ignored"
                )
            return
        chosen = directory or _default_directory()
        _open(chosen.resolve(), identify(given))


def wait_for_first_use() -> None:
    """Open a recording at the first event, if the environment names a folder."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if directory:
        STATE.waiting = Path(directory).resolve(), identify({})


def first_use() -> Segment | None:
    """Open the recording that waits for its first event; None if none does."""
    with _LOCK[0]:
        if STATE.segment is None and STATE.waiting is not None:
            _open(*STATE.waiting)
        return STATE.segment


def end() -> None:
    """Close the recording and turn its segments into Arrow."""
    with _LOCK[0]:
        STATE.waiting = None
        recording = STATE.recording
        if recording is None:
            return
        _run_callbacks()
        STATE.forget()
        recording.close()
        _restore_environment()
    _convert(recording.folder)


def on_stop(callback: Callable[[], object]) -> None:
    """Call `callback` before the recording ends, while it still records."""
    _callbacks.append(callback)


def _open(directory: Path, who: Identity) -> None:
    STATE.waiting = None
    if sys.platform != "linux":
        warn_once("the recorder works on Linux only, so nothing is recorded here")
        return
    try:
        recording = Recording(directory, who)
    except OSError as error:
        warn_once(f"nothing is recorded, the training goes on ({error})")
        return
    STATE.forget()
    STATE.recording = recording
    STATE.segment = recording.segment
    _tell_children(directory, who)
    _end_with_multiprocessing()


def _default_directory() -> Path:
    """Return where to record if nobody said: ranks of one launcher on one host agree on it."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named)
    together = launcher_of(os.environ) is not None
    since = process_started_ns(os.getppid()) if together else None
    seconds = time.time() if since is None else since // 10**9
    return Path("traces") / time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(seconds))


def _tell_children(directory: Path, who: Identity) -> None:
    """Let processes that this one spawns record to the same folder, as its children."""
    for name, value in (
        (DIRECTORY_VARIABLE, str(directory)),
        (PARENT_VARIABLE, who.for_children(os.getpid())),
    ):
        _replaced.setdefault(name, os.environ.get(name))
        os.environ[name] = value


def _restore_environment() -> None:
    for name, value in _replaced.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _replaced.clear()


def _end_with_multiprocessing() -> None:
    """End with the process also where atexit is not run: in children that multiprocessing forked."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, exitpriority=-100)


def _run_callbacks() -> None:
    for callback in _callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - a hook's failure must not reach the training
            warn_once(f"a hook failed when recording stopped ({error!r})")
    _callbacks.clear()


def _convert(folder: Path) -> None:
    # numpy and pyarrow take a quarter of a second to import: not before training has ended.
    from tracelens.schema.segments import convert  # noqa: PLC0415 - see the line above

    try:
        convert(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, the segments remain readable
        warn_once(f"{folder} could not be converted, it stays readable as it is ({error!r})")


def _in_forked_child() -> None:
    """Make the child a recording process of its own, beginning at its first event."""
    _LOCK[0] = threading.RLock()
    REGISTRY.after_fork()
    _callbacks.clear()
    STATE.set_step(NO_STEP)
    recording = STATE.recording
    if recording is not None:
        recording.abandon()
        STATE.forget()
        STATE.waiting = recording.directory, replace(recording.who, parent=recording.process.pid)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
atexit.register(end)
