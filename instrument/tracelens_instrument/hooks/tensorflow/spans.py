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

    thread: tuple[int, int]
    name: str
    start_ns: int
    end_ns: int
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A session's run of a training operation, and which step that was."""

    start_ns: int
    end_ns: int
    number: int


@dataclass(frozen=True)
class ProfiledSpan:
    """A span to record; `lane` numbers requests in flight; None otherwise."""

    name: str
    kind: str
    op: str | None
    start_ns: int
    end_ns: int
    shard: int | None = None
    lane: int | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Step:
    """One function run in a process: its operations, and what receives or sends each tensor."""

    step_id: int
    wait_begins_ns: dict[str, int] = field(default_factory=dict)
    arrivals: dict[str, Event] = field(default_factory=dict)
    sends: dict[str, Event] = field(default_factory=dict)
    operations: list[Event] = field(default_factory=list)
    peer: int | None = None  # the worker, on a server

    def request(self, worker: int, tensor: str) -> int:
        """Return the request's identity, the same on both ends."""
        text = f"{self.step_id}/{tensor}".encode()
        return worker << 40 | int.from_bytes(blake2b(text, digest_size=5).digest(), "big")


class _AggregatedPush(NamedTuple):
    """A gradient of a worker's step that was added up for its variable by then."""

    end_ns: int
    step: _Step
    tensor: str


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
        if step.wait_begins_ns.keys() & plan.pulls.keys() or step.sends.keys() & plan.pushes.keys()
    ]
    if runs:
        yield from _session_spans(worker_steps, runs, task_index, plan)
        return
    step_end_ns = None
    for step_index, step in enumerate(worker_steps):
        spans = list(_worker_spans(step, step_index, task_index, plan))
        if spans:  # the first is that of the step
            if step_end_ns and step_end_ns < spans[0].start_ns:
                yield ProfiledSpan(_IDLE, "wait", "launch", step_end_ns, spans[0].start_ns)
            step_end_ns = spans[0].end_ns
        yield from spans


def _session_spans(
    worker_steps: list[_Step], runs: Sequence[Run], worker: int, plan: Plan
) -> Iterator[ProfiledSpan]:
    """Yield the spans of each session's run that the profile shows from its begin on.

    The first operation of a profiled step lies in its run, whose begin, end and number are known.
    """
    last_run: Run | None = None
    for step in worker_steps:
        send_begins_ns = [event.start_ns for event in step.sends.values()]
        first_ns = min([*step.wait_begins_ns.values(), *send_begins_ns])
        run_index = bisect_right(runs, first_ns, key=lambda run: run.start_ns) - 1
        if run_index < 0 or first_ns > runs[run_index].end_ns:
            continue
        run = runs[run_index]
        spans = [
            span for span in _worker_spans(step, run.number, worker, plan) if span.kind == "ps"
        ]
        spans += _compute_spans(step, run, plan)
        is_from_begin = bool(step.wait_begins_ns.keys() & plan.pulls.keys())
        if not spans or not is_from_begin or (last_run and run.number <= last_run.number):
            continue
        values = {"step": run.number}
        if last_run and last_run.number + 1 == run.number:
            gap = last_run.end_ns, run.start_ns
            yield ProfiledSpan(_BETWEEN_RUNS, "user", None, *gap, values={"step": last_run.number})
        last_run = run
        yield ProfiledSpan("step", "step", None, run.start_ns, run.end_ns, values=values)
        yield from spans
        yield from _update_waits(step, run, plan)


def _compute_spans(step: _Step, run: Run, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield forward and backprop, without the pauses in which a variable had not come yet."""
    values = {"step": run.number}
    pulls_end_ns = max(
        (step.arrivals[name].end_ns for name in plan.pulls if name in step.arrivals), default=0
    )
    for kind, events in _split_phases(step.operations):
        begin_ns, end_ns = events[0].start_ns, events[0].end_ns
        for event in events[1:]:
            if end_ns + _TOUCHING_NS < event.start_ns and end_ns < pulls_end_ns:
                yield ProfiledSpan(kind, kind, None, begin_ns, end_ns, values=values)
                begin_ns = event.start_ns
            end_ns = max(end_ns, event.end_ns)
        yield ProfiledSpan(kind, kind, None, begin_ns, end_ns, values=values)


def _update_waits(step: _Step, run: Run, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield the wait of a worker that has pushed everything for the token: all is updated then."""
    token = next((step.arrivals[name] for name in plan.tokens if name in step.arrivals), None)
    if token is None:
        return
    events = [event for event in step.operations if event.end_ns < token.end_ns]
    begin_ns = max((event.end_ns for event in (*events, *step.sends.values())), default=None)
    if begin_ns is not None and begin_ns < token.end_ns:
        values = {"step": run.number}
        yield ProfiledSpan(_UPDATE_WAIT, "wait", None, begin_ns, token.end_ns, values=values)


def _gather_steps(events: list[Event]) -> list[_Step]:
    """Return the steps with their events, which name their step or lie within one that does."""
    steps: dict[int, _Step] = {}  # by step_id
    executor_events: dict[tuple[int, int], list[Event]] = defaultdict(list)  # by thread
    events.sort(key=lambda event: event.start_ns)
    for event in events:
        if event.name == _EXECUTOR:
            executor_events[event.thread].append(event)
    for event in events:
        step_id = event.stats.get("step_id") or _find_step_id(event, executor_events[event.thread])
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
            step.wait_begins_ns[tensor] = event.start_ns
        else:
            step.arrivals[tensor] = event
    elif event.name.endswith(":_Send"):
        step.sends[_NUMBER_SUFFIX.sub("", event.name)] = event
        worker_match = _WORKER.search(str(event.stats.get("key", "")))
        step.peer = int(worker_match[1]) if worker_match else step.peer
    elif ":" in event.name and not event.name.startswith(_RUNTIME_EVENTS):
        step.operations.append(event)


def _worker_spans(step: _Step, step_index: int, worker: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield a worker's step, then its forward pass and backprop, its pulls and its pushes."""
    values = {"step": step_index}
    spans: list[ProfiledSpan] = []
    for kind, events in _split_phases(step.operations):
        end_ns = max(event.end_ns for event in events)
        spans.append(ProfiledSpan(kind, kind, None, events[0].start_ns, end_ns, values=values))
    spans += _pull_spans(step, step_index, worker, plan)
    spans += _push_spans(step, step_index, worker, plan)
    if spans:
        begin_ns, end_ns = min(span.start_ns for span in spans), max(span.end_ns for span in spans)
        yield ProfiledSpan("step", "step", None, begin_ns, end_ns, values=values)
        yield from spans


def _split_phases(operations: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Yield forward and backprop with their operations: a gradient's begins backprop."""
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


def _pull_spans(step: _Step, step_index: int, worker: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield a worker's pulls: each from when it waits for the tensor until that has arrived."""
    for lane, (tensor, transfer) in enumerate(plan.pulls.items()):
        if tensor in step.wait_begins_ns and tensor in step.arrivals:
            times = step.wait_begins_ns[tensor], step.arrivals[tensor].end_ns
            request = step.request(worker, tensor)
            yield _make_request_span("pull", transfer, times, request, lane, step=step_index)


def _push_spans(step: _Step, step_index: int, worker: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield pushes; each ends when the worker learns of the update, if it waits for that."""
    last_arrival_ns = max((event.end_ns for event in step.arrivals.values()), default=0)
    for lane, (tensor, transfer) in enumerate(plan.pushes.items(), len(plan.pulls)):
        if tensor in step.sends:
            send, update = step.sends[tensor], step.arrivals.get(transfer.update)
            update_ns = last_arrival_ns if update is None else update.end_ns
            times = send.start_ns, max(update_ns, send.end_ns)
            request = step.request(worker, tensor)
            yield _make_request_span("push", transfer, times, request, lane, step=step_index)


def _server_spans(step: _Step, shard: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield a server's part of a step: replies to pulls, gradients received and applied."""
    if step.peer is None:
        return
    events_by_operation = {event.name.partition(":")[0]: event for event in step.operations}
    for tensor, transfer in plan.pulls.items():
        if tensor in step.sends and transfer.shard == shard:
            yield _make_server_span("reply", step, tensor, transfer, step.sends[tensor])
    for tensor, transfer in plan.pushes.items():
        if tensor in step.arrivals and transfer.shard == shard:
            yield _make_server_span("receive", step, tensor, transfer, step.arrivals[tensor])
            update_event = events_by_operation.get(transfer.update)
            if update_event:
                yield _make_server_span(transfer.served, step, tensor, transfer, update_event)


def _aggregated_update_spans(steps: list[_Step], shard: int, plan: Plan) -> Iterator[ProfiledSpan]:
    """Yield a server's updates from aggregated gradients: each belongs to the last push before."""
    pushes: defaultdict[str, list[_AggregatedPush]] = defaultdict(list)  # by variable
    for step in (step for step in steps if step.peer is not None):
        ends_ns = {event.name.partition(":")[0]: event.end_ns for event in step.operations}
        for tensor, push in plan.pushes.items():
            if tensor in step.arrivals and push.served == "aggregate" and push.update in ends_ns:
                pushes[push.variable].append(_AggregatedPush(ends_ns[push.update], step, tensor))
    for variable_pushes in pushes.values():
        variable_pushes.sort(key=lambda push: push.end_ns)
    for event in (event for step in steps if step.peer is None for event in step.operations):
        update = plan.applied.get(event.name.partition(":")[0])
        if update and update.shard == shard:
            variable_pushes = pushes.get(update.variable, [])
            push_count = bisect_right(variable_pushes, event.start_ns, key=lambda push: push.end_ns)
            if push_count:
                last_push = variable_pushes[push_count - 1]
                yield _make_server_span("apply", last_push.step, last_push.tensor, update, event)


def _make_server_span(
    op: str, step: _Step, tensor: str, transfer: Transfer, event: Event
) -> ProfiledSpan:
    """Make the span of what a server did in an event for the worker of a step."""
    assert step.peer is not None
    request = step.request(step.peer, tensor)
    times = event.start_ns, event.end_ns
    return _make_request_span(op, transfer, times, request, peer=step.peer)


def _make_request_span(
    op: str,
    transfer: Transfer,
    times: tuple[int, int],
    request: int,
    lane: int | None = None,
    **values: int,
) -> ProfiledSpan:
    """Make a span of a request from begin to end, ns; of some transfers the size is not known."""
    size = {} if transfer.nbytes is None else {"nbytes": transfer.nbytes}
    values = size | {"request": request} | values
    return ProfiledSpan(f"{op} {transfer.variable}", "ps", op, *times, transfer.shard, lane, values)
