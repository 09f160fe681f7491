"""From what TensorFlow's profiler saw to spans: steps, phases and requests of a worker or a server.

A function that is spread over a worker and servers has one `step_id` on all of them. A tensor that one
of them waits for shows as the start and the end of a ``_Recv`` operation, one that it gives away as a
``_Send``; so both ends of a transfer are known by step and tensor. The same holds for what a session
runs, whose begin, end and number Python has seen.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracelens_instrument.hooks.tensorflow.plan import Plan, Transfer

__all__ = ["Event", "ProfiledSpan", "Run", "spans_of"]

_EXECUTOR: Final = "ExecutorState::Process"
_RECEIVE_START: Final = f"{_EXECUTOR}Async::Start"
_RECEIVE_DONE: Final = f"{_EXECUTOR}Async::Done"
_NUMBER_SUFFIX: Final = re.compile(
    r"(/_|_S)\d+(:_Send)?$"
)  # what partitioning a graph adds to a name
_WORKER: Final = re.compile(r"/job:worker/[^;]*task:(\d+)")
_IDLE: Final = "wait for the coordinator"  # until it gives the worker its next function to run
_TOUCHING_NS: Final = 50_000  # what lies between two operations of one computation
_BETWEEN_RUNS: Final = "between session runs"  # the program's own Python
_UPDATE_WAIT: Final = "wait for the token"
_GRADIENTS: Final = re.compile(r"gradient_tape/|(.*/)?gradients(_\d+)?/")
_RUNTIME_EVENTS: Final = ("ExecutorState", "Threadpool", "Eager", "FunctionRun", "KernelAndDevice")


@dataclass(frozen=True)
class Event:
    """An event of the profile, on the monotonic clock."""

    thread_key: tuple[int, int]
    name: str
    start_ns: int
    end_ns: int
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A session's run of a training operation, and which step that was."""

    start_ns: int
    end_ns: int
    step_number: int


@dataclass(frozen=True)
class ProfiledSpan:
    """A span to record; `lane` numbers requests in flight; None otherwise."""

    name: str
    kind: str
    start_ns: int
    end_ns: int
    op: str | None = None
    shard: int | None = None
    lane: int | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Step:
    """One function run in a process: its operations, and what receives or sends each tensor."""

    step_id: int
    wait_begin_ns_by_tensor: dict[str, int] = field(default_factory=dict)
    arrival_by_tensor: dict[str, Event] = field(default_factory=dict)
    send_by_tensor: dict[str, Event] = field(default_factory=dict)
    operation_events: list[Event] = field(default_factory=list)
    peer_worker: int | None = None  # whose step it is, on a server

    def make_request_id(self, worker_index: int, tensor: str) -> int:
        """Return the request's identity, the same on both ends."""
        text = f"{self.step_id}/{tensor}".encode()
        return worker_index << 40 | int.from_bytes(blake2b(text, digest_size=5).digest(), "big")


class _AggregatedPush(NamedTuple):
    """A gradient of a worker's step that was added up for its variable by then."""

    end_ns: int
    step: _Step
    tensor_name: str


def spans_of(
    events: Iterable[Event], role: str, task_index: int, plan: Plan, runs: Sequence[Run] = ()
) -> Iterator[ProfiledSpan]:
    """Yield the spans of worker or server `task_index`, by `role`, from events of its profile.

    `runs` are those of a worker's sessions, by time; without them its steps are numbered from 0.
    """
    steps = _gather_steps(list(events))
    if role == "ps":
        for step in steps:
            yield from _server_spans(step, task_index, plan)
        yield from _aggregated_update_spans(steps, task_index, plan)
        return
    worker_steps = [
        step
        for step in steps
        if step.wait_begin_ns_by_tensor.keys() & plan.pull_by_tensor.keys()
        or step.send_by_tensor.keys() & plan.push_by_tensor.keys()
    ]
    if runs:
        yield from _session_spans(worker_steps, runs, task_index, plan)
        return
    step_end_ns = None
    for step_index, step in enumerate(worker_steps):
        spans = list(_worker_spans(step, step_index, task_index, plan))
        if spans:  # the first is that of the step
            if step_end_ns and step_end_ns < spans[0].start_ns:
                yield ProfiledSpan(_IDLE, "wait", step_end_ns, spans[0].start_ns, op="launch")
            step_end_ns = spans[0].end_ns
        yield from spans


def _session_spans(
    worker_steps: list[_Step], runs: Sequence[Run], worker_index: int, plan: Plan
) -> Iterator[ProfiledSpan]:
    """Yield the spans of each session's run that the profile shows from its begin on.

    The run of a profiled step contains its first operation; its begin, end and number are known.
    """
    last_run: Run | None = None  # of which spans were yielded
    for step in worker_steps:
        send_begins_ns = [event.start_ns for event in step.send_by_tensor.values()]
        first_ns = min([*step.wait_begin_ns_by_tensor.values(), *send_begins_ns])
        run_index = bisect_right(runs, first_ns, key=lambda run: run.start_ns) - 1
        if run_index < 0 or first_ns > runs[run_index].end_ns:
            continue
        run = runs[run_index]
        spans = [
            span
            for span in _worker_spans(step, run.step_number, worker_index, plan)
            if span.kind == "ps"
        ]
        spans += _compute_spans(step, run, plan)
        is_from_begin = bool(step.wait_begin_ns_by_tensor.keys() & plan.pull_by_tensor.keys())
        if not spans or not is_from_begin or (last_run and run.step_number <= last_run.step_number):
            continue
        if last_run and last_run.step_number + 1 == run.step_number:
            gap = last_run.end_ns, run.start_ns
            yield _make_span(_BETWEEN_RUNS, "user", *gap, last_run.step_number)
        last_run = run
        yield _make_span("step", "step", run.start_ns, run.end_ns, run.step_number)
        yield from spans
        yield from _update_waits(step, run, plan)


def _compute_spans(step: _Step, run: Run, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield forward and backprop of a run, without the pauses in which a variable had not come yet."""
    arrivals = step.arrival_by_tensor
    pull_ends_ns = (arrivals[tensor].end_ns for tensor in plan.pull_by_tensor if tensor in arrivals)
    last_pull_end_ns = max(pull_ends_ns, default=0)
    for kind, events in _split_phases(step.operation_events):
        begin_ns, end_ns = events[0].start_ns, events[0].end_ns
        for event in events[1:]:
            if end_ns + _TOUCHING_NS < event.start_ns and end_ns < last_pull_end_ns:
                yield _make_span(kind, kind, begin_ns, end_ns, run.step_number)
                begin_ns = event.start_ns
            end_ns = max(end_ns, event.end_ns)
        yield _make_span(kind, kind, begin_ns, end_ns, run.step_number)


def _make_span(name: str, kind: str, begin_ns: int, end_ns: int, step: int) -> ProfiledSpan:
    return ProfiledSpan(name, kind, begin_ns, end_ns, values={"step": step})


def _update_waits(step: _Step, run: Run, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield the wait of a worker that has pushed everything for the token: all is updated then."""
    arrivals = step.arrival_by_tensor
    token = next((arrivals[name] for name in plan.token_operations if name in arrivals), None)
    if token is None:
        return
    events = [event for event in step.operation_events if event.end_ns < token.end_ns]
    ends_ns = (event.end_ns for event in (*events, *step.send_by_tensor.values()))
    begin_ns = max(ends_ns, default=None)
    if begin_ns is not None and begin_ns < token.end_ns:
        yield _make_span(_UPDATE_WAIT, "wait", begin_ns, token.end_ns, run.step_number)


def _gather_steps(events: list[Event]) -> list[_Step]:
    """Return the steps with their events, which name their step or lie in an executor's event of one."""
    steps: dict[int, _Step] = {}  # by step_id
    executor_events: dict[tuple[int, int], list[Event]] = defaultdict(list)  # by thread
    events.sort(key=lambda event: event.start_ns)
    for event in events:
        if event.name == _EXECUTOR:
            executor_events[event.thread_key].append(event)
    for event in events:
        step_id = event.stats.get("step_id") or _find_step_id(
            event, executor_events[event.thread_key]
        )
        if step_id is not None:
            _add_event(steps.setdefault(step_id, _Step(step_id)), event)
    return list(steps.values())


def _find_step_id(event: Event, outer_events: list[Event]) -> int | None:
    """Return the step of the executor's event around this one; a thread's never overlap."""
    outer_index = bisect_right(outer_events, event.start_ns, key=lambda outer: outer.start_ns) - 1
    if outer_index < 0 or event.end_ns > outer_events[outer_index].end_ns:
        return None
    return outer_events[outer_index].stats.get("id")


def _add_event(step: _Step, event: Event) -> None:
    """Add an event to its step: by its name it receives or sends a tensor, or computes."""
    if event.name in (_RECEIVE_START, _RECEIVE_DONE):
        tensor = _NUMBER_SUFFIX.sub("", str(event.stats.get("name", "")))
        if event.name == _RECEIVE_START:
            step.wait_begin_ns_by_tensor[tensor] = event.start_ns
        else:
            step.arrival_by_tensor[tensor] = event
    elif event.name.endswith(":_Send"):
        step.send_by_tensor[_NUMBER_SUFFIX.sub("", event.name)] = event
        worker_match = _WORKER.search(str(event.stats.get("key", "")))
        step.peer_worker = int(worker_match[1]) if worker_match else step.peer_worker
    elif ":" in event.name and not event.name.startswith(_RUNTIME_EVENTS):
        step.operation_events.append(event)


def _worker_spans(
    step: _Step, step_index: int, worker_index: int, plan: Plan
) -> Iterator[ProfiledSpan]:
    """Yield a worker's step, then its forward pass and backprop, its pulls and its pushes."""
    spans: list[ProfiledSpan] = []
    for kind, events in _split_phases(step.operation_events):
        end_ns = max(event.end_ns for event in events)
        spans.append(_make_span(kind, kind, events[0].start_ns, end_ns, step_index))
    spans += _pull_spans(step, step_index, worker_index, plan)
    spans += _push_spans(step, step_index, worker_index, plan)
    if spans:
        begin_ns, end_ns = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
        yield _make_span("step", "step", begin_ns, end_ns, step_index)
        yield from spans


def _split_phases(operations: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Yield "forward" and "backprop", which a gradient's operation begins, with their operations."""
    gradient_index = next(
        (index for index, event in enumerate(operations) if _GRADIENTS.match(event.name)),
        len(operations),
    )
    for kind, events in (
        ("forward", operations[:gradient_index]),
        ("backprop", operations[gradient_index:]),
    ):
        if events:
            yield kind, events


def _pull_spans(
    step: _Step, step_index: int, worker_index: int, plan: Plan
) -> Iterator[ProfiledSpan]:
    """Yield a worker's pulls: each from when it waits for the tensor until that has arrived."""
    for lane, (tensor, transfer) in enumerate(plan.pull_by_tensor.items()):
        if tensor in step.wait_begin_ns_by_tensor and tensor in step.arrival_by_tensor:
            times = step.wait_begin_ns_by_tensor[tensor], step.arrival_by_tensor[tensor].end_ns
            request = step.make_request_id(worker_index, tensor)
            yield _make_request_span("pull", transfer, times, request, lane, step=step_index)


def _push_spans(
    step: _Step, step_index: int, worker_index: int, plan: Plan
) -> Iterator[ProfiledSpan]:
    """Yield pushes, in lanes after those of pulls; each ends when the worker learns of the update."""
    last_arrival_ns = max((event.end_ns for event in step.arrival_by_tensor.values()), default=0)
    first_lane = len(plan.pull_by_tensor)
    for lane, (tensor, transfer) in enumerate(plan.push_by_tensor.items(), first_lane):
        send = step.send_by_tensor.get(tensor)
        if send is not None:
            update_arrival = step.arrival_by_tensor.get(transfer.update_operation)
            update_ns = last_arrival_ns if update_arrival is None else update_arrival.end_ns
            times = send.start_ns, max(update_ns, send.end_ns)
            request = step.make_request_id(worker_index, tensor)
            yield _make_request_span("push", transfer, times, request, lane, step=step_index)


def _server_spans(step: _Step, shard: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield what server `shard` did in a worker's step: replies to pulls, pushes received, updates."""
    if step.peer_worker is None:
        return
    event_by_operation = {event.name.partition(":")[0]: event for event in step.operation_events}
    for tensor, transfer in plan.pull_by_tensor.items():
        if tensor in step.send_by_tensor and transfer.shard == shard:
            yield _make_server_span("reply", step, tensor, transfer, step.send_by_tensor[tensor])
    for tensor, transfer in plan.push_by_tensor.items():
        if tensor in step.arrival_by_tensor and transfer.shard == shard:
            arrival = step.arrival_by_tensor[tensor]
            yield _make_server_span("receive", step, tensor, transfer, arrival)
            update_event = event_by_operation.get(transfer.update_operation)
            if update_event:
                yield _make_server_span(transfer.server_op, step, tensor, transfer, update_event)


def _aggregated_update_spans(steps: list[_Step], shard: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield a server's updates from aggregated gradients: each belongs to the last push before."""
    pushes_by_variable: defaultdict[str, list[_AggregatedPush]] = defaultdict(list)
    for step in (step for step in steps if step.peer_worker is not None):
        ends_ns = {event.name.partition(":")[0]: event.end_ns for event in step.operation_events}
        for tensor, push in plan.push_by_tensor.items():
            end_ns = ends_ns.get(push.update_operation)  # of adding it up
            has_arrived = tensor in step.arrival_by_tensor
            if has_arrived and push.server_op == "aggregate" and end_ns is not None:
                pushes_by_variable[push.variable].append(_AggregatedPush(end_ns, step, tensor))
    for pushes in pushes_by_variable.values():
        pushes.sort(key=lambda push: push.end_ns)
    own_events = (step.operation_events for step in steps if step.peer_worker is None)
    for event in chain.from_iterable(own_events):
        update = plan.server_updates.get(event.name.partition(":")[0])
        if update and update.shard == shard:
            pushes = pushes_by_variable.get(update.variable, [])
            push_count = bisect_right(pushes, event.start_ns, key=lambda push: push.end_ns)
            if push_count:
                last_push = pushes[push_count - 1]
                yield _make_server_span(
                    "apply", last_push.step, last_push.tensor_name, update, event
                )


def _make_server_span(
    op: str, step: _Step, tensor: str, transfer: Transfer, event: Event
) -> ProfiledSpan:
    """Make the span of operation `op`, done by a server in an event, for a worker's step and tensor."""
    assert step.peer_worker is not None
    request = step.make_request_id(step.peer_worker, tensor)
    times = event.start_ns, event.end_ns
    return _make_request_span(op, transfer, times, request, peer=step.peer_worker)


def _make_request_span(
    op: str,
    transfer: Transfer,
    begin_and_end_ns: tuple[int, int],
    request: int,
    lane: int | None = None,
    **values: int,
) -> ProfiledSpan:
    """Make the span of a request from begin to end, ns; `lane` numbers what a worker has in flight."""
    size = {} if transfer.nbytes is None else {"nbytes": transfer.nbytes}
    values = size | {"request": request} | values
    name, shard = f"{op} {transfer.variable}", transfer.shard
    return ProfiledSpan(name, "ps", *begin_and_end_ns, op, shard=shard, lane=lane, values=values)
