"""JAX: steps from its own annotation, collectives and computation from its profiler, for some steps.

What a compiled function does runs in XLA's threads, where Python sees nothing. So the steps that the
program marks with ``jax.profiler.StepTraceAnnotation`` are recorded all, and some of them are profiled:
collectives become spans one by one, computation is put together. All processes run the same program, so
equal operations of the same run are one collective.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import wrapt

from tracelens_instrument import recorder
from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.core.clock import now
from tracelens_instrument.hooks.base import attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "HOST_LEVEL",
    "WINDOW",
    "WINDOW_VARIABLE",
    "Operation",
    "Seen",
    "install",
    "spans_of",
]


# XLA's names, and those of JAX's primitives, which it takes over where it can.
_COLLECTIVES: Final = (
    (re.compile(r"psum_scatter|reduce[-_]scatter"), "reduce_scatter"),
    (re.compile(r"all[-_]reduce|psum|pmean|pmax|pmin"), "allreduce"),
    (re.compile(r"all[-_]gather"), "all_gather"),
    (re.compile(r"all[-_]to[-_]all"), "all_to_all"),
    (re.compile(r"collective[-_]broadcast|pbroadcast"), "broadcast"),
)
_TOUCHING_NS: Final = 50_000  # what lies between two operations of one computation
WINDOW_VARIABLE: Final = "TRACELENS_JAX_STEPS"
WINDOW: Final = (5, 25)
HOST_LEVEL: Final = 2
_TRACK: Final = "XLA"


@dataclass(frozen=True)
class Operation:
    """An operation of a compiled function, on the monotonic clock."""

    name: str
    module: str
    device: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Seen:
    """A span to record; without `op` it is computation."""

    name: str
    op: str | None
    start_ns: int
    end_ns: int
    step: int
    seq: int = 0


def spans_of(operations: Iterable[Operation], steps: Mapping[int, int]) -> Iterator[Seen]:
    """Yield spans by time.

    Args:
        operations: What was run; of several devices of a process the first counts.
        steps: The steps that were profiled, and when each began.
    """
    by_time = sorted(operations, key=lambda operation: operation.start_ns)
    first_device = min((operation.device for operation in by_time), default=0)
    begins = sorted((begin_ns, step) for step, begin_ns in steps.items())
    calls: Counter[str] = Counter()
    computing: list[tuple[int, int]] = []
    for operation in by_time:
        step = _step_at(operation.start_ns, begins)
        if operation.device != first_device or step is None:
            continue
        op = _collective_op(operation.name)
        if op is None:
            _extend_computation(computing, operation)
            continue
        name = f"{operation.module}/{operation.name}"
        yield Seen(name, op, operation.start_ns, operation.end_ns, step, calls[name])
        calls[name] += 1
    for begin_ns, end_ns in computing:
        yield Seen("computation", None, begin_ns, end_ns, _step_at(begin_ns, begins) or 0)


def _collective_op(name: str) -> str | None:
    return next((op for pattern, op in _COLLECTIVES if pattern.match(name)), None)


def _step_at(moment: int, begins: list[tuple[int, int]]) -> int | None:
    at = bisect_right(begins, moment, key=lambda pair: pair[0])
    return begins[at - 1][1] if at else None


def _extend_computation(computing: list[tuple[int, int]], operation: Operation) -> None:
    """Add an operation to those before it, if it touches them."""
    if computing and operation.start_ns <= computing[-1][1] + _TOUCHING_NS:
        begin, end = computing[-1]
        computing[-1] = begin, max(end, operation.end_ns)
    else:
        computing.append((operation.start_ns, operation.end_ns))


def install(_jax: Any) -> None:
    """Record annotated steps, and the rank of this process."""
    wrapt.wrap_function_wrapper("jax.distributed", "initialize", _initialize)
    for method, wrapper in (
        ("__init__", _around_init),
        ("__enter__", _around_enter),
        ("__exit__", _around_exit),
    ):
        wrapt.wrap_function_wrapper("jax.profiler", f"StepTraceAnnotation.{method}", wrapper)


class _Window:
    """The steps that are profiled: the same ones in every process."""

    def __init__(self) -> None:
        self.first, self.last = WINDOW
        with contextlib.suppress(ValueError):
            first, _, last = os.environ.get(WINDOW_VARIABLE, "").partition(":")
            self.first, self.last = int(first), int(last)
        self.count = 0
        self.begun: dict[int, int] = {}  # steps and when they began, ns
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._offset_ns = 0

    def begin(self, step: int) -> None:
        """Called when a step begins."""
        if self.count == self.first:
            self._start()
        self.count += 1
        self.begun[step] = now()

    def end(self) -> None:
        """Called when it is over."""
        if self._folder is not None and self.count == self.last:
            self.finish()

    def _start(self) -> None:
        import jax  # noqa: PLC0415 - only with JAX

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, HOST_LEVEL
        self._folder = tempfile.TemporaryDirectory()
        self._offset_ns = time.time_ns() - now()
        self.begun.clear()
        jax.profiler.start_trace(self._folder.name, profiler_options=options)
        recorder.on_stop(self.finish)

    def finish(self) -> None:
        """Stop profiling, and record what was seen."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        import jax  # noqa: PLC0415 - only with JAX

        jax.profiler.stop_trace()
        with folder:
            for file in Path(folder.name).rglob("*.xplane.pb"):
                operations = _operations(file, self._offset_ns)
                for seen in spans_of(operations, self.begun):
                    _record(seen)


@functools.cache
def _window() -> _Window:
    """Return that of this process, which is made when its first step begins."""
    note_attached("JAX's steps")
    return _Window()


def _initialize(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    attempt(_identify)
    return value


def _identify() -> None:
    from jax._src.distributed import global_state  # noqa: PLC0415 - only with JAX

    recorder.identify(global_state.process_id, global_state.num_processes)


def _around_init(wrapped: Any, annotation: Any, args: Any, kwargs: Any) -> None:
    wrapped(*args, **kwargs)
    annotation.tracelens_step = kwargs.get("step_num")


def _around_enter(wrapped: Any, annotation: Any, args: Any, kwargs: Any) -> Any:
    attempt(_begin, annotation)
    return wrapped(*args, **kwargs)


def _begin(annotation: Any) -> None:
    number = annotation.tracelens_step
    step = _window().count if number is None else int(number)
    annotation.tracelens_open = recorder.step(step)
    annotation.tracelens_open.__enter__()
    _window().begin(step)


def _around_exit(wrapped: Any, annotation: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    attempt(_end, annotation)
    return value


def _end(annotation: Any) -> None:
    annotation.tracelens_open.__exit__(None, None, None)
    _window().end()


def _operations(file: Path, wall_minus_monotonic: int) -> list[Operation]:
    """Read what XLA ran on this process's first device; times become those of the monotonic clock."""
    import jax  # noqa: PLC0415 - only with JAX

    profile = jax.profiler.ProfileData.from_file(str(file))
    planes = list(profile.planes)
    began = next(
        int(value)
        for plane in planes
        for name, value in plane.stats
        if name == "profile_start_time"
    )
    offset_ns = began - wall_minus_monotonic
    operations = []
    for event in (event for plane in planes for line in plane.lines for event in line.events):
        stats = dict(event.stats)
        if "hlo_op" in stats:
            begin_ns = offset_ns + int(event.start_ns)
            operations.append(
                Operation(
                    name=str(stats["hlo_op"]),
                    module=str(stats.get("hlo_module", "")),
                    device=int(stats.get("device_ordinal", 0)),
                    start_ns=begin_ns,
                    end_ns=begin_ns + int(event.duration_ns),
                )
            )
    return operations


def _record(observed: Seen) -> None:
    if observed.op is None:
        recorder.span(observed.name, kind="user").complete(
            observed.start_ns, observed.end_ns, step=observed.step
        )
        return
    from jax._src.distributed import global_state  # noqa: PLC0415 - only with JAX

    ranks = range(global_state.num_processes or 1)
    communicator = recorder.communicator(ranks, f"XLA {observed.name}")
    handle = recorder.span(
        observed.name, kind="reduction", op=observed.op, communicator=communicator
    )
    track = recorder.track(_TRACK)
    handle.complete(observed.start_ns, observed.end_ns, track, seq=observed.seq, step=observed.step)
