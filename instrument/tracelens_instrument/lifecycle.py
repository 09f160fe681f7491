"""Begin and end of a recording: on request, by environment, in forked children, at exit.

When one begins it warns of functions that were decorated before, while nothing recorded.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from dataclasses import replace
from functools import partial
from threading import RLock

from tracelens_instrument.core import environment
from tracelens_instrument.core.failures import (
    Tolerated,
    contained,
    reraise_if_handlers,
    short_repr,
    warn_if_out_of_memory,
    warn_once,
)
from tracelens_instrument.core.identity import identify, read_launcher, with_hook_values
from tracelens_instrument.core.registry import REGISTRY
from tracelens_instrument.core.state import NO_STEP, STATE, Waiting
from tracelens_instrument.endings import open_on_exit, open_on_failure
from tracelens_instrument.recording import Recording
from tracelens_instrument.retention.detail_switch import DetailSwitch
from tracelens_instrument.retention.policy import (
    DEFAULT_DETAIL,
    described,
    from_environment,
    to_environment,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any, Final

    from tracelens.schema.detail import DetailRequest
    from tracelens.schema.side import Retention
    from tracelens_instrument.core.identity import Identity
    from tracelens_instrument.core.state import OpenSegment
    from tracelens_instrument.stacks.launch import Sampler

__all__ = [
    "UNRECORDED",
    "UnrecordedFunctions",
    "begin",
    "current_recording",
    "detail",
    "end",
    "keep",
    "learn_identity",
    "note_detail",
    "on_detail",
    "on_start",
    "on_stop",
    "open_at_first_use",
    "wait_for_first_use",
]

_MAX_NAMED_FUNCTIONS: Final = 3


class UnrecordedFunctions:
    """Counts undecorated functions, and keeps the names of the first."""

    def __init__(self) -> None:
        self.clear()

    def add(self, name: str) -> None:
        """Remember one more function."""
        self._number += 1
        if len(self._names) < _MAX_NAMED_FUNCTIONS:
            self._names.append(name)

    def warn(self) -> None:
        """Warn of them, and forget them."""
        if self._number:
            more = self._number - len(self._names)
            warn_once(
                f"not recorded are {', '.join(self._names)}{f' and {more} more' if more else ''}, given "
                "to tl.traced before recording began: call tl.start before functions are decorated, or "
                "set TRACELENS_DIR",
                "missed",
            )
        self.clear()

    def clear(self) -> None:
        """Forget the functions."""
        self._names: list[str] = []
        self._number = 0


UNRECORDED: Final = UnrecordedFunctions()


class _Guard:
    """Lets one thread at a time begin or end; a forked child gets a fresh lock."""

    def __init__(self) -> None:
        self.lock = RLock()


_GUARD: Final = _Guard()
_beginnings: list[Callable[[], object]] = []
_callbacks: list[Callable[[], object]] = []
_hook_values: dict[str, int | None] = {}
_details: list[str] = []  # details asked for before the recording began
_detail_callbacks: list[Callable[[str | None], bool]] = []
_samplers: list[Sampler] = []  # the one that was requested while it records, if any


def current_recording() -> Recording | None:
    """Return the current recording, or None."""
    return STATE.recording  # type: ignore[return-value]  # nothing else is ever put there, see `_open`


def begin(directory: Path | None, identity_values: Mapping[str, Any], retention: Retention) -> None:
    """Open a recording now."""
    with _GUARD.lock:
        current = current_recording()
        if current is None:
            _open(directory, lambda: identify(identity_values, _hook_values), lambda: retention)
        else:
            _warn_of_differences(current, directory, retention)


def wait_for_first_use() -> None:
    """Open a recording at the first event, if the environment names a folder."""
    directory = environment.wanted_directory()
    if directory is not None and STATE.recording is None:
        with Tolerated(OSError):  # the working folder is gone: that will be said then
            directory = directory.absolute()
        STATE.waiting = Waiting(directory, open_at_first_use)
        if read_launcher(os.environ) is not None:
            open_on_failure(open_at_first_use)


def open_at_first_use() -> OpenSegment | None:
    """Open the recording that waits for its first event; return its segment, None if none is open."""
    with _GUARD.lock:
        waiting = STATE.waiting
        if STATE.segment is None and waiting is not None:
            identity = waiting.identity
            _open(
                waiting.directory, lambda: identity or identify({}, _hook_values), from_environment
            )
        return STATE.segment


@contained
def learn_identity(rank: int | None, world: int | None, local_rank: int | None) -> None:
    """Take from a hook what neither the launcher nor the caller of `start` has set."""
    with _GUARD.lock:
        _hook_values.update(rank=rank, world=world, local_rank=local_rank)
        recording = current_recording()
        if recording is not None and not recording.identity.rank_known:
            recording.rename(with_hook_values(recording.identity, _hook_values))
            _mark_environment(recording)


def detail() -> str:
    """Return the detail of hooks, in the current recording or the next one."""
    recording = current_recording()
    found = from_environment() if recording is None else recording.retention
    return found.detail or DEFAULT_DETAIL


def note_detail(level: str) -> None:
    """Called when a hook records at this detail, for one of its objects at least."""
    with _GUARD.lock:
        recording = current_recording()
        if recording is None:
            _details.append(level)
        else:
            recording.look(level)


def keep() -> None:
    """Keep the steps that a recording of the last steps holds, permanently."""
    recording = current_recording()
    if recording is not None:
        recording.keep()


def end(*, wait: bool = False) -> None:
    """Close the recording and turn its segments into Arrow.

    Where a converter has been doing so during the training, it gets three seconds and goes on by itself.
    With `wait` the file exists afterwards, unless one warning says otherwise.
    """
    with _GUARD.lock:
        contained(open_on_exit)(open_at_first_use)
        STATE.waiting = None
        recording = current_recording()
        _run_callbacks(_callbacks, "stopped")
        _callbacks.clear()
        if recording is None:
            return
        for finish in (recording.close, environment.restore):
            contained(finish)()
    _convert(recording, wait=wait)


def on_start(callback: Callable[[], object]) -> None:
    """Call `callback` when a recording has begun, each time."""
    _beginnings.append(callback)


def on_stop(callback: Callable[[], object]) -> None:
    """Call `callback` before the recording ends, while it still records, or nothing is recorded yet."""
    _callbacks.append(callback)


def on_detail(change_hook_detail: Callable[[str | None], bool]) -> None:
    """Call this with a level of detail whenever one is requested while it records, with None after it.

    It returns True if there is something that can be recorded at other levels.
    """
    _detail_callbacks.append(change_hook_detail)


def _open(
    directory: Path | None,
    make_identity: Callable[[], Identity],
    read_retention: Callable[[], Retention],
) -> None:
    """Begin to record into `directory`, else where the environment says; warn if anything fails.

    Rank and world come from `make_identity`, and what to keep from `read_retention`.
    """
    STATE.waiting = None
    if sys.platform != "linux":
        warn_once("the recorder works on Linux only, so nothing is recorded here")
        return
    try:
        trace_folder = (
            directory or environment.wanted_directory() or environment.default_directory()
        )
        recording = Recording(trace_folder.absolute(), make_identity(), read_retention())
    except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
        reraise_if_handlers(error)
        REGISTRY.stop_listening()
        if not warn_if_out_of_memory(error):
            warn_once(f"nothing is recorded, the training goes on ({error})", f"open {directory}")
        return
    STATE.forget()
    STATE.recording = recording
    STATE.segment = recording.segment
    _prepare(recording)


@contained
def _prepare(recording: Recording) -> None:
    while _details:
        recording.look(_details.pop())
    _mark_environment(recording)
    recording.end_notes.begin()
    if os.environ.get(environment.KEEP_SIGNAL_VARIABLE):
        _install_keep_signal()
    sampling_hz = os.environ.get(environment.RATE_VARIABLE)
    if sampling_hz and recording.identity.parent_pid is None:  # else its parent's sampler sees it
        _begin_sampling(recording, int(sampling_hz))
    recording.detail_switch = DetailSwitch(recording.directory, partial(_change_detail, recording))
    _end_with_multiprocessing()
    UNRECORDED.warn()
    _run_callbacks(_beginnings, "began")


def _mark_environment(recording: Recording) -> None:
    kept = to_environment(recording.retention)
    environment.mark_for_children(recording.directory, recording.identity, kept)


def _install_keep_signal() -> None:
    from tracelens_instrument.retention.last_steps import install_signal, uninstall_signal  # noqa: PLC0415 - few ask for one

    install_signal()
    on_stop(uninstall_signal)


def _begin_sampling(
    recording: Recording, sampling_hz: int, duration_s: float | None = None
) -> Sampler | None:
    """Sample stacks for some time, or until the recording ends; return None if that failed."""
    from tracelens_instrument.stacks.launch import begin as begin_sampling  # noqa: PLC0415 - few need it

    sampler = begin_sampling(
        recording.process.pid,
        recording.directory,
        recording.folder.stem,
        sampling_hz=sampling_hz,
        duration_s=duration_s,
    )
    if sampler is not None:
        on_stop(sampler.finish)
    return sampler


def _change_detail(recording: Recording, request: DetailRequest | None) -> None:
    """Let hooks look as closely as requested, and have stacks sampled; None ends that."""
    requested_level = None if request is None else request.level
    have_models = [change_hook_detail(requested_level) for change_hook_detail in _detail_callbacks]
    level = requested_level if any(have_models) else None
    if request is None:
        if _samplers:
            _samplers.pop().stop()
    elif request.sampling_hz is not None and _may_sample(recording):
        duration_s = (request.end_ns - time.time_ns()) / 1e9
        sampler = _begin_sampling(recording, request.sampling_hz, duration_s)
        _samplers.extend([sampler] if sampler is not None else [])
    sampling_hz = request.sampling_hz if request is not None and _samplers else None
    recording.note_detail(level, sampling_hz)


def _may_sample(recording: Recording) -> bool:
    """Return True unless stacks are sampled already: by `record --sample`, or with the parent's."""
    is_sampled = bool(os.environ.get(environment.RATE_VARIABLE))
    return not is_sampled and recording.identity.parent_pid is None


def _warn_of_differences(current: Recording, directory: Path | None, retention: Retention) -> None:
    """Warn that a recording that is open keeps its options."""
    if retention != current.retention:
        warn_once(
            f"start was asked to keep {described(retention)}, but this process already keeps "
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
        return os.path.normpath(one.absolute()) == os.path.normpath(other)
    except OSError:  # the working folder is gone
        return False


def _end_with_multiprocessing() -> None:
    """End with the process also where atexit is not run: in children that multiprocessing forked."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end, exitpriority=-100)


def _run_callbacks(callbacks: list[Callable[[], object]], moment: str) -> None:
    """Call what hooks registered for a moment ("began", "stopped"); warn if one fails."""
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - a hook's failure must not reach the training
            reraise_if_handlers(error)
            warn_once(
                f"a hook failed when recording {moment} ({short_repr(error)})", f"hook {moment}"
            )


def _convert(recording: Recording, *, wait: bool) -> None:
    """Make an Arrow file of the recording, if another process does not do so; `wait` for that one."""
    try:
        if recording.hand_over(wait=wait):
            if wait:
                _warn_of_standstill(recording)
            return
        if not recording.folder.exists():
            return
        from tracelens_instrument.storage.conversion import convert  # noqa: PLC0415 - not before it is needed

        convert(recording.readable_path)
    except Exception as error:  # noqa: BLE001 - whatever it is, the segments remain readable
        reraise_if_handlers(error)
        if not recording.storage.is_stopped:  # else it is known that there is no room, or no folder
            warn_once(
                f"{recording.folder} could not be converted, it stays as it is ({short_repr(error)})",
                f"write {recording.folder}",
            )


def _warn_of_standstill(recording: Recording) -> None:
    warn_once(
        f"{recording.folder} is not an Arrow file yet, and the process that makes it comes to nothing; "
        "all events are there, and `tracelens analyze` reads them as they are",
        f"write {recording.folder}",
    )


def _in_forked_child() -> None:
    """Make the child a recording process of its own, beginning at its first event."""
    _GUARD.lock = RLock()
    REGISTRY.after_fork()
    _callbacks.clear()
    _samplers.clear()
    STATE.set_step(NO_STEP)
    recording = current_recording()
    if recording is not None:
        STATE.forget()
        identity = replace(recording.identity, parent_pid=recording.process.pid)
        STATE.waiting = Waiting(recording.directory, open_at_first_use, identity)
        recording.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
atexit.register(end)
