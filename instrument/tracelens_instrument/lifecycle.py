"""Begin and end of a recording: on request, by environment, in forked children, at exit."""

from __future__ import annotations

import atexit
import os
import sys

from tracelens.schema.light import replace
from tracelens_instrument import environment
from tracelens_instrument.failures import Tolerated, contained, let_through, shown, warn_once
from tracelens_instrument.identity import enlightened, identify
from tracelens_instrument.light_threads import RLock
from tracelens_instrument.missed import MISSED
from tracelens_instrument.recording import Recording
from tracelens_instrument.registry import REGISTRY
from tracelens_instrument.retention import DEFAULT_DETAIL, described, from_environment
from tracelens_instrument.state import NO_STEP, STATE, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any, Final

    from tracelens.schema.side import Retention
    from tracelens_instrument.identity import Identity
    from tracelens_instrument.segments import Segment

__all__ = [
    "begin",
    "detail",
    "end",
    "first_use",
    "keep",
    "learn",
    "look",
    "on_stop",
    "wait_for_first_use",
]

_LOCK: Final = [RLock()]  # in a list, because a forked child needs a fresh one
_callbacks: list[Callable[[], object]] = []
_learned: dict[str, int | None] = {}
_looks: list[str] = []  # details asked for before the recording began


def begin(directory: Path | None, given: Mapping[str, Any], wanted: Retention) -> None:
    """Open a recording now."""
    with _LOCK[0]:
        current = STATE.recording
        if current is None:
            _open(directory, lambda: identify(given, _learned), lambda: wanted)
        else:
            _say_what_differs(current, directory, wanted)


def wait_for_first_use() -> None:
    """Open a recording at the first event, if the environment names a folder."""
    directory = environment.wanted_directory()
    if directory is not None and STATE.recording is None:
        with Tolerated(OSError):  # the working folder is gone: that will be said then
            directory = directory.absolute()
        STATE.waiting = Waiting(directory)


def first_use() -> Segment | None:
    """Open the recording that waits for its first event; None if none does."""
    with _LOCK[0]:
        waiting = STATE.waiting
        if STATE.segment is None and waiting is not None:
            who = waiting.who
            _open(waiting.directory, lambda: who or identify({}, _learned), from_environment)
        return STATE.segment


@contained
def learn(rank: int | None, world: int | None, local_rank: int | None) -> None:
    """Be told by a hook what neither the launcher nor the caller of `start` had said."""
    with _LOCK[0]:
        _learned.update(rank=rank, world=world, local_rank=local_rank)
        recording = STATE.recording
        if recording is not None and not recording.who.told:
            recording.rename(enlightened(recording.who, _learned))
            environment.tell_children(recording.directory, recording.who, recording.retention)


def detail() -> str:
    """Return how closely hooks are to look, in the recording under way or the next one."""
    recording = STATE.recording
    found = from_environment() if recording is None else recording.retention
    return found.detail or DEFAULT_DETAIL


def look(level: str) -> None:
    """Be told that a hook looks so closely, at one of its objects at least."""
    with _LOCK[0]:
        recording = STATE.recording
        if recording is None:
            _looks.append(level)
        else:
            recording.look(level)


def keep() -> None:
    """Keep for ever the steps that a recording of the last steps holds now."""
    recording = STATE.recording
    if recording is not None:
        recording.storage.freeze()


def end() -> None:
    """Close the recording and turn its segments into Arrow."""
    with _LOCK[0]:
        STATE.waiting = None
        recording = STATE.recording
        if recording is None:
            return
        _run_callbacks()
        for last in (recording.close, environment.restore):
            contained(last)()
    _convert(recording)


def on_stop(callback: Callable[[], object]) -> None:
    """Call `callback` before the recording ends, while it still records."""
    _callbacks.append(callback)


def _open(
    directory: Path | None, who: Callable[[], Identity], wanted: Callable[[], Retention]
) -> None:
    STATE.waiting = None
    if sys.platform != "linux":
        warn_once("the recorder works on Linux only, so nothing is recorded here")
        return
    try:
        chosen = directory or environment.wanted_directory() or environment.default_directory()
        recording = Recording(chosen.absolute(), who(), wanted())
    except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
        let_through(error)
        REGISTRY.deafen()
        warn_once(f"nothing is recorded, the training goes on ({error})", f"open {directory}")
        return
    STATE.forget()
    STATE.recording = recording
    STATE.segment = recording.segment
    _prepare(recording)


@contained
def _prepare(recording: Recording) -> None:
    while _looks:
        recording.look(_looks.pop())
    environment.tell_children(recording.directory, recording.who, recording.retention)
    if os.environ.get(environment.KEEP_SIGNAL_VARIABLE):
        _heed_signal()
    if os.environ.get(environment.RATE_VARIABLE):
        _have_sampled(recording)
    _end_with_multiprocessing()
    MISSED.say()


def _heed_signal() -> None:
    from tracelens_instrument.keep_signal import install, uninstall  # noqa: PLC0415 - few ask for one

    install()
    on_stop(uninstall)


def _have_sampled(recording: Recording) -> None:
    from tracelens_instrument.stacks.beside import begin as begin_sampling  # noqa: PLC0415 - few need it

    finish = begin_sampling(recording)
    if finish:
        on_stop(finish)


def _say_what_differs(current: Recording, directory: Path | None, wanted: Retention) -> None:
    """Say that a recording that is open goes on as it began."""
    if wanted != current.retention:
        warn_once(
            f"start was asked to keep {described(wanted)}, but this process already keeps "
            f"{described(current.retention)}: it goes on so",
            "keep otherwise",
        )
    if directory is not None and not _is_same(directory, current.directory):
        warn_once(
            f"start was asked to record to {directory}, but this process already records to "
            f"{current.directory}: it goes on there",
            "record elsewhere",
        )


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.absolute() == other
    except OSError:  # the working folder is gone
        return False


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
            let_through(error)
            warn_once(f"a hook failed when recording stopped ({shown(error)})", "hook at the end")
    _callbacks.clear()


def _convert(recording: Recording) -> None:
    try:
        if recording.hand_over() or not recording.folder.exists():
            return
        from tracelens_instrument.ending import convert  # noqa: PLC0415 - not before it is needed

        convert(recording.place)
    except Exception as error:  # noqa: BLE001 - whatever it is, the segments remain readable
        let_through(error)
        if not recording.storage.stopped:  # else it is known that there is no room, or no folder
            warn_once(
                f"{recording.folder} could not be converted, it stays as it is ({shown(error)})",
                f"write {recording.folder}",
            )


def _in_forked_child() -> None:
    """Make the child a recording process of its own, beginning at its first event."""
    _LOCK[0] = RLock()
    REGISTRY.after_fork()
    _callbacks.clear()
    STATE.set_step(NO_STEP)
    recording = STATE.recording
    if recording is not None:
        STATE.forget()
        who = replace(recording.who, parent=recording.process.pid)
        STATE.waiting = Waiting(recording.directory, who)
        recording.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
atexit.register(end)
