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
    "PROFILED_STEPS",
    "WINDOW_VARIABLE",
    "Operation",
    "ProfiledSpan",
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
PROFILED_STEPS: Final = (5, 25)
HOST_LEVEL: Final = 2
_TRACK: Final = "XLA"


@dataclass(frozen=True)
class Operation:
    """An operation of a compiled function, on the monotonic clock."""

    name: str
    module_name: str
    device_index: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class ProfiledSpan:
    """A span to record; without `op` it is computation. `seq` numbers the calls of one collective."""

    name: str
    start_ns: int
    end_ns: int
    step: int
    op: str | None = None
    seq: int = 0


def spans_of(
    operations: Iterable[Operation], step_begins_ns: Mapping[int, int]
) -> Iterator[ProfiledSpan]:
    """Yield the collectives by time, then computation.

    Args:
        operations: What was run; of several devices of a process the first counts.
        step_begins_ns: When each step began that was profiled, by its number.
    """
    ordered_operations = sorted(operations, key=lambda operation: operation.start_ns)
    first_device = min((operation.device_index for operation in ordered_operations), default=0)
    begins_and_steps = sorted((begin_ns, step) for step, begin_ns in step_begins_ns.items())
    call_counts: Counter[str] = Counter()  # by name
    computations: list[tuple[int, int]] = []  # begin and end, ns
    for operation in ordered_operations:
        step = _find_step(operation.start_ns, begins_and_steps)
        if operation.device_index != first_device or step is None:
            continue
        op = _collective_op(operation.name)
        if op is None:
            _extend_computations(computations, operation)
            continue
        name = f"{operation.module_name}/{operation.name}"
        yield ProfiledSpan(name, operation.start_ns, operation.end_ns, step, op, call_counts[name])
        call_counts[name] += 1
    for begin_ns, end_ns in computations:
        step = _find_step(begin_ns, begins_and_steps) or 0
        yield ProfiledSpan("computation", begin_ns, end_ns, step)


def _collective_op(name: str) -> str | None:
    return next((op for pattern, op in _COLLECTIVES if pattern.match(name)), None)


def _find_step(moment_ns: int, begins: list[tuple[int, int]]) -> int | None:
    """Return the last step that had begun by then; `begins` are (begin in ns, step), by time."""
    begun_count = bisect_right(begins, moment_ns, key=lambda begin: begin[0])
    return begins[begun_count - 1][1] if begun_count else None


def _extend_computations(computations: list[tuple[int, int]], operation: Operation) -> None:
    """Extend the last computation by an operation that touches it, or begin another."""
    if computations and operation.start_ns <= computations[-1][1] + _TOUCHING_NS:
        begin_ns, end_ns = computations[-1]
        computations[-1] = begin_ns, max(end_ns, operation.end_ns)
    else:
        computations.append((operation.start_ns, operation.end_ns))


def install(_jax: Any) -> None:
    """Record annotated steps, and the rank of this process."""
    wrapt.wrap_function_wrapper("jax.distributed", "initialize", _around_initialize)
    for method, wrapper in (
        ("__init__", _around_init),
        ("__enter__", _around_enter),
        ("__exit__", _around_exit),
    ):
        wrapt.wrap_function_wrapper("jax.profiler", f"StepTraceAnnotation.{method}", wrapper)


class _Window:
    """The steps that are profiled: the same ones in every process."""

    def __init__(self) -> None:
        """Take the window to profile from the environment: ``FIRST:LAST`` of the steps counted here."""
        self.first_step, self.last_step = PROFILED_STEPS
        with contextlib.suppress(ValueError):
            first_text, _, last_text = os.environ.get(WINDOW_VARIABLE, "").partition(":")
            self.first_step, self.last_step = int(first_text), int(last_text)
        self.step_count = 0  # steps that have begun
        self.begin_ns_by_step: dict[int, int] = {}  # by step
        self._profile_folder: tempfile.TemporaryDirectory[str] | None = None
        self._wall_minus_monotonic_ns = 0

    def begin(self, step: int) -> None:
        """Called when a step begins."""
        if self.step_count == self.first_step:
            self._start()
        self.step_count += 1
        self.begin_ns_by_step[step] = now()

    def end(self) -> None:
        """Called when it is over."""
        if self._profile_folder is not None and self.step_count == self.last_step:
            self.finish()

    def _start(self) -> None:
        import jax  # noqa: PLC0415 - only with JAX

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, HOST_LEVEL
        self._profile_folder = tempfile.TemporaryDirectory()
        self._wall_minus_monotonic_ns = time.time_ns() - now()
        self.begin_ns_by_step.clear()
        jax.profiler.start_trace(self._profile_folder.name, profiler_options=options)
        recorder.on_stop(self.finish)

    def finish(self) -> None:
        """Stop profiling, and record the spans of the profile."""
        folder, self._profile_folder = self._profile_folder, None
        if folder is None:
            return
        import jax  # noqa: PLC0415 - only with JAX

        jax.profiler.stop_trace()
        with folder:
            for file in Path(folder.name).rglob("*.xplane.pb"):
                operations = _read_operations(file, self._wall_minus_monotonic_ns)
                for span in spans_of(operations, self.begin_ns_by_step):
                    _record_span(span)


@functools.cache
def _window() -> _Window:
    """Return that of this process, which is made when its first step begins."""
    note_attached("JAX's steps")
    return _Window()


def _around_initialize(wrapped: Any, _instance: Any, args: Any, kwargs: Any) -> Any:
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
    attempt(_begin_step, annotation)
    return wrapped(*args, **kwargs)


def _begin_step(annotation: Any) -> None:
    number = annotation.tracelens_step
    step = _window().step_count if number is None else int(number)
    annotation.tracelens_open = recorder.step(step)
    annotation.tracelens_open.__enter__()
    _window().begin(step)


def _around_exit(wrapped: Any, annotation: Any, args: Any, kwargs: Any) -> Any:
    value = wrapped(*args, **kwargs)
    attempt(_end_step, annotation)
    return value


def _end_step(annotation: Any) -> None:
    annotation.tracelens_open.__exit__(None, None, None)
    _window().end()


def _read_operations(profile_path: Path, wall_minus_monotonic_ns: int) -> list[Operation]:
    """Read the operations that XLA ran in this process; their times (Unix) become monotonic ones."""
    import jax  # noqa: PLC0415 - only with JAX

    profile = jax.profiler.ProfileData.from_file(str(profile_path))
    planes = list(profile.planes)
    profile_begin_ns = next(
        int(value)
        for plane in planes
        for name, value in plane.stats
        if name == "profile_start_time"
    )
    offset_ns = profile_begin_ns - wall_minus_monotonic_ns
    operations = []
    for event in (event for plane in planes for line in plane.lines for event in line.events):
        stats = dict(event.stats)
        if "hlo_op" in stats:
            begin_ns = offset_ns + int(event.start_ns)
            operations.append(
                Operation(
                    name=str(stats["hlo_op"]),
                    module_name=str(stats.get("hlo_module", "")),
                    device_index=int(stats.get("device_ordinal", 0)),
                    start_ns=begin_ns,
                    end_ns=begin_ns + int(event.duration_ns),
                )
            )
    return operations


def _record_span(span: ProfiledSpan) -> None:
    """Record a collective, among all processes, on XLA's track; computation (no `op`) on this thread."""
    if span.op is None:
        recorder.span(span.name, kind="user").complete(span.start_ns, span.end_ns, step=span.step)
        return
    from jax._src.distributed import global_state  # noqa: PLC0415 - only with JAX

    ranks = range(global_state.num_processes or 1)
    communicator = recorder.communicator(ranks, f"XLA {span.name}")
    handle = recorder.span(span.name, kind="reduction", op=span.op, communicator=communicator)
    track = recorder.track(_TRACK)
    handle.complete(span.start_ns, span.end_ns, track, seq=span.seq, step=span.step)
