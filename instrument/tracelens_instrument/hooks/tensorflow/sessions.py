"""Sessions of TensorFlow 1: each run of a training operation on a cluster is a step of its worker.

A session runs a part of its graph, spread over a worker and the servers. Which tensors that moves
follows from the devices of the graph's operations, and when, from the profile of a moment. The worker
whose session trains first writes the plan for all, after some runs have shown how long one takes.
"""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import wrapt

from tracelens_instrument.core.attachments import note_attached
from tracelens_instrument.core.clock import now
from tracelens_instrument.core.environment import wanted_directory
from tracelens_instrument.hooks.base import attempt
from tracelens_instrument.hooks.tensorflow.plan import Plan, has_plan, write_plan
from tracelens_instrument.hooks.tensorflow.session_graph import make_plan
from tracelens_instrument.hooks.tensorflow.spans import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SESSIONS", "install"]

WARM_UP_RUNS: Final = 5  # runs, of which the first ones also place and start things
PROFILED_RUNS: Final = 60  # at least, where a window may be long enough
LONGEST_S: Final = 60.0
_MOST_RUNS: Final = 100_000  # kept: a window never has more


class Sessions:
    """The training runs of this process, and which operations train."""

    def __init__(self) -> None:
        self.recent_runs: deque[Run] = deque(maxlen=_MOST_RUNS)
        self.plan: Plan | None = None  # as soon as one is known
        self._run_durations_s: list[float] = []
        self._number_offset: int | None = None  # what a run's number has more than its index
        self._trains_by_graph: WeakKeyDictionary[Any, dict[tuple[str, ...], bool]] = (
            WeakKeyDictionary()
        )

    def is_training(self, session: Any, targets: Iterable[Any], fetches: Iterable[Any]) -> bool:
        """Return True if a run (for operations and tensors) updates variables on servers; remembered."""
        if not session._target:  # noqa: SLF001 - nothing public says it
            return False
        operations = [*targets, *(tensor.op for tensor in fetches)]
        names = tuple(operation.name for operation in operations)
        trains_by_names = self._trains_by_graph.setdefault(session.graph, {})
        if names not in trains_by_names:
            plan = make_plan(session.graph, default_duration_s=0.0)  # only what is pushed matters
            updates = {push.update_operation for push in plan.push_by_tensor.values()}
            trains_by_names[names] = not updates.isdisjoint(_find_needed_names(operations))
        return trains_by_names[names]

    def begin_run(self, session: Any) -> None:
        """Take the number of the first profiled run from the global step, which workers share."""
        plan = self.plan
        if plan is None or self._number_offset is not None or time.time_ns() < plan.begin_ns:
            return
        self._number_offset = -len(self.recent_runs)
        if plan.token_operations:
            self._number_offset += _global_step(session)

    def end_run(self, session: Any, begin_ns: int) -> None:
        """Note a run; write the plan as soon as it is known how long one takes."""
        end_ns = now()
        self.recent_runs.append(
            Run(begin_ns, end_ns, len(self.recent_runs) + (self._number_offset or 0))
        )
        if self.plan is None and len(self._run_durations_s) <= WARM_UP_RUNS:
            self._run_durations_s.append((end_ns - begin_ns) / 1e9)
            if len(self._run_durations_s) == WARM_UP_RUNS:
                self._write_plan(session.graph)

    def _write_plan(self, graph: Any) -> None:
        """Write the plan, unless another worker has, for a window that holds enough runs."""
        directory = wanted_directory()
        if directory is None or has_plan(directory):
            return
        default_duration_s = min(PROFILED_RUNS * median(self._run_durations_s), LONGEST_S)
        plan = make_plan(graph, default_duration_s)
        write_plan(directory, plan)
        sizes = ", ".join(
            f"{nbytes:,} on server {shard}" for shard, nbytes in plan.bytes_by_shard.items()
        )
        note_attached(
            f"TensorFlow's sessions with {len(plan.variable_names)} variables on parameter servers, "
            f"bytes pushed a run: {sizes}"
        )


SESSIONS: Final = Sessions()


def install() -> None:
    """Record every session's training runs."""
    wrapt.wrap_function_wrapper(
        "tensorflow.python.client.session", "BaseSession._do_run", _around_run
    )


def _around_run(
    run: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a part of the session's graph (targets are operations), and note the run if it trains."""
    _handle, targets, fetches = args[:3] if len(args) > 2 else (None, (), ())
    if not attempt(SESSIONS.is_training, session, targets, fetches):
        return run(*args, **kwargs)
    attempt(SESSIONS.begin_run, session)
    begin_ns = now()
    result = run(*args, **kwargs)
    attempt(SESSIONS.end_run, session, begin_ns)
    return result


def _find_needed_names(operations: Iterable[Any]) -> set[str]:
    """Return the names of all operations that these need, their own among them."""
    visited_names: set[str] = set()
    stack = list(operations)
    while stack:
        operation = stack.pop()
        if operation.name not in visited_names:
            visited_names.add(operation.name)
            stack += [tensor.op for tensor in operation.inputs]
            stack += operation.control_inputs
    return visited_names


def _global_step(session: Any) -> int:
    from tensorflow.python.training.training_util import get_global_step  # noqa: PLC0415 - only with TensorFlow

    step = get_global_step(session.graph)
    return 0 if step is None else int(session.run(step))
