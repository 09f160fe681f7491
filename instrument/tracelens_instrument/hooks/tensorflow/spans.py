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
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tracelens_instrument.hooks.tensorflow.plan import Plan, Transfer

__all__ = ["Event", "Run", "Seen", "spans_of"]

_EXECUTOR: Final = "ExecutorState::Process"
_BEGUN: Final = f"{_EXECUTOR}Async::Start"
_DONE: Final = f"{_EXECUTOR}Async::Done"
_NUMBERED: Final = re.compile(r"(/_|_S)\d+(:_Send)?$")  # what partitioning a graph adds to a name
_WORKER: Final = re.compile(r"/job:worker/[^;]*task:(\d+)")
_IDLE: Final = "wait for the coordinator"  # until it gives the worker its next function to run
_TOUCHING_NS: Final = 50_000  # what lies between two operations of one computation
_BETWEEN: Final = "between session runs"  # the program's own Python
_AWAITED: Final = "wait for the token"
_GRADIENTS: Final = re.compile(r"gradient_tape/|(.*/)?gradients(_\d+)?/")
_WORDY: Final = ("ExecutorState", "Threadpool", "Eager", "FunctionRun", "KernelAndDevice")


@dataclass(frozen=True)
class Event:
    """An event of the profile, on the monotonic clock; `line` is the thread."""

    line: tuple[int, int]
    name: str
    start_ns: int
    end_ns: int
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A session's run of a training operation, and which step that was."""

    start_ns: int
    end_ns: int
    number: int


@dataclass(frozen=True)
class Seen:
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
    """One function run: when each tensor was waited for and came, what was sent, what was computed."""

    identity: int
    begun: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, tuple[int, int]] = field(default_factory=dict)
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    computed: list[Event] = field(default_factory=list)
    peer: int | None = None

    def request(self, worker: int, tensor: str) -> int:
        """Return the request's identity, the same on both ends."""
        text = f"{self.identity}/{tensor}".encode()
        return worker << 40 | int.from_bytes(blake2b(text, digest_size=5).digest(), "big")


def spans_of(
    events: Iterable[Event], role: str, number: int, plan: Plan, runs: Sequence[Run] = ()
) -> Iterator[Seen]:
    """Yield the spans of worker or server `number`; `runs` are those of a worker's sessions, by time."""
    steps = _steps(list(events))
    if role == "ps":
        for step in steps:
            yield from _served(step, number, plan)
        yield from _applied(steps, number, plan)
        return
    worker_steps = [
        step for step in steps if step.begun.keys() & plan.pulls.keys() or _pushed(step, plan)
    ]
    if runs:
        yield from _of_runs(worker_steps, runs, number, plan)
        return
    idle_since = None
    for index, step in enumerate(worker_steps):
        spans = list(_worked(step, index, number, plan))
        if spans and idle_since and idle_since < spans[0].start_ns:
            yield Seen(_IDLE, "wait", "launch", idle_since, spans[0].start_ns)
        idle_since = spans[0].end_ns if spans else idle_since
        yield from spans


def _of_runs(
    worker_steps: list[_Step], runs: Sequence[Run], worker: int, plan: Plan
) -> Iterator[Seen]:
    """Assign profiled events to the runs whose begin was seen."""
    last_run: Run | None = None
    for step in worker_steps:
        first_ns = min([*step.begun.values(), *(start for start, _ in step.sent.values())])
        run_index = bisect_right(runs, first_ns, key=lambda run: run.start_ns) - 1
        if (
            run_index < 0
            or first_ns > runs[run_index].end_ns
            or not step.begun.keys() & plan.pulls.keys()
        ):
            continue
        run = runs[run_index]
        spans = list(_worked(step, run.number, worker, plan))
        spans = [*(one for one in spans if one.kind == "ps"), *_computing(step, run, plan)]
        if not spans or (last_run and run.number <= last_run.number):
            continue
        if last_run and last_run.number + 1 == run.number:
            gap = {"step": last_run.number}
            yield Seen(_BETWEEN, "user", None, last_run.end_ns, run.start_ns, values=gap)
        last_run = run
        yield Seen("step", "step", None, run.start_ns, run.end_ns, values={"step": run.number})
        yield from spans
        yield from _token(step, run, plan)


def _computing(step: _Step, run: Run, plan: Plan) -> Iterator[Seen]:
    """Forward and backprop, without the pauses in which a variable had not come yet."""
    pulls_end_ns = max(
        (step.arrived[name][1] for name in plan.pulls if name in step.arrived), default=0
    )
    for kind, events in _phases(step.computed):
        begin_ns, end_ns = events[0].start_ns, events[0].end_ns
        for event in events[1:]:
            if end_ns + _TOUCHING_NS < event.start_ns and end_ns < pulls_end_ns:
                yield Seen(kind, kind, None, begin_ns, end_ns, values={"step": run.number})
                begin_ns = event.start_ns
            end_ns = max(end_ns, event.end_ns)
        yield Seen(kind, kind, None, begin_ns, end_ns, values={"step": run.number})


def _token(step: _Step, run: Run, plan: Plan) -> Iterator[Seen]:
    """A worker in step with the others has pushed everything, and waits for all to be updated."""
    arrivals = [step.arrived[token][1] for token in plan.tokens if token in step.arrived]
    done = [event.end_ns for event in step.computed if arrivals and event.end_ns < arrivals[0]]
    done += [end for _, end in step.sent.values()]
    if arrivals and done and max(done) < arrivals[0]:
        yield Seen(_AWAITED, "wait", None, max(done), arrivals[0], values={"step": run.number})


def _steps(events: list[Event]) -> list[_Step]:
    """Gather the events of each step; those that do not name it lie within one that does."""
    steps: dict[int, _Step] = {}
    within: dict[tuple[int, int], list[Event]] = defaultdict(list)
    events.sort(key=lambda event: event.start_ns)
    for event in events:
        if event.name == _EXECUTOR:
            within[event.line].append(event)
    for event in events:
        identity = event.about.get("step_id") or _identity(event, within[event.line])
        if identity is not None:
            _note(steps.setdefault(identity, _Step(identity)), event)
    return list(steps.values())


def _identity(event: Event, outer_spans: list[Event]) -> int | None:
    """Return the step of the executor's span that holds this event; those of a thread never overlap."""
    outer_index = bisect_right(outer_spans, event.start_ns, key=lambda outer: outer.start_ns) - 1
    if outer_index < 0 or event.end_ns > outer_spans[outer_index].end_ns:
        return None
    return outer_spans[outer_index].about.get("id")


def _note(step: _Step, event: Event) -> None:
    if event.name in (_BEGUN, _DONE):
        tensor = _NUMBERED.sub("", str(event.about.get("name", "")))
        if event.name == _BEGUN:
            step.begun[tensor] = event.start_ns
        else:
            step.arrived[tensor] = (event.start_ns, event.end_ns)
    elif event.name.endswith(":_Send"):
        step.sent[_NUMBERED.sub("", event.name)] = (event.start_ns, event.end_ns)
        worker = _WORKER.search(str(event.about.get("key", "")))
        step.peer = int(worker[1]) if worker else step.peer
    elif ":" in event.name and not event.name.startswith(_WORDY):
        step.computed.append(event)


def _pushed(step: _Step, plan: Plan) -> bool:
    return bool(step.sent.keys() & plan.pushes.keys())


def _worked(step: _Step, index: int, worker: int, plan: Plan) -> Iterator[Seen]:
    """A worker's step: pulls, forward, backprop, pushes."""
    requests = [*_pulls(step, index, worker, plan), *_pushes(step, index, worker, plan)]
    phases = [
        Seen(
            kind, kind, None, part[0].start_ns, max(e.end_ns for e in part), values={"step": index}
        )
        for kind, part in _phases(step.computed)
    ]
    ends = [(seen.start_ns, seen.end_ns) for seen in (*requests, *phases)]
    if not ends:
        return
    begin, end = min(start for start, _ in ends), max(end for _, end in ends)
    yield Seen("step", "step", None, begin, end, values={"step": index})
    yield from phases
    yield from requests


def _phases(computed: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Forward until the first operation of the gradient, backprop from there."""
    first_gradient = next(
        (index for index, event in enumerate(computed) if _GRADIENTS.match(event.name)),
        len(computed),
    )
    for kind, events in (
        ("forward", computed[:first_gradient]),
        ("backprop", computed[first_gradient:]),
    ):
        if events:
            yield kind, events


def _pulls(step: _Step, index: int, worker: int, plan: Plan) -> Iterator[Seen]:
    for lane, (tensor, transfer) in enumerate(plan.pulls.items()):
        if tensor in step.begun and tensor in step.arrived:
            values = _transfer_values(transfer, step.request(worker, tensor))
            yield Seen(
                f"pull {transfer.variable}",
                "ps",
                "pull",
                step.begun[tensor],
                step.arrived[tensor][1],
                transfer.shard,
                lane,
                values | {"step": index},
            )


def _pushes(step: _Step, index: int, worker: int, plan: Plan) -> Iterator[Seen]:
    """Yield pushes: each ends when the worker learns that the update is made, if it waits for that."""
    informed_ns = max((end_ns for _, end_ns in step.arrived.values()), default=0)
    for lane, (tensor, transfer) in enumerate(plan.pushes.items(), len(plan.pulls)):
        if tensor in step.sent:
            begin_ns, end_ns = step.sent[tensor]
            values = _transfer_values(transfer, step.request(worker, tensor))
            yield Seen(
                f"push {transfer.variable}",
                "ps",
                "push",
                begin_ns,
                max(step.arrived.get(transfer.update, (0, informed_ns))[1], end_ns),
                transfer.shard,
                lane,
                values | {"step": index},
            )


def _served(step: _Step, shard: int, plan: Plan) -> Iterator[Seen]:
    """A server's part of a step: replies to pulls, gradients received and applied."""
    if step.peer is None:
        return
    applied = {event.name.partition(":")[0]: event for event in step.computed}
    for tensor, transfer in plan.pulls.items():
        if tensor in step.sent and transfer.shard == shard:
            yield _make_server_span("reply", step, tensor, transfer, step.sent[tensor])
    for tensor, transfer in plan.pushes.items():
        if tensor not in step.arrived or transfer.shard != shard:
            continue
        yield _make_server_span("receive", step, tensor, transfer, step.arrived[tensor])
        event = applied.get(transfer.update)
        if event:
            yield _make_server_span(
                transfer.served, step, tensor, transfer, (event.start_ns, event.end_ns)
            )


def _applied(steps: list[_Step], shard: int, plan: Plan) -> Iterator[Seen]:
    """Yield a server's updates from aggregated gradients: each belongs to the last push before it."""
    added: defaultdict[str, list[tuple[int, _Step, str]]] = defaultdict(list)
    for step in (step for step in steps if step.peer is not None):
        done = {event.name.partition(":")[0]: event.end_ns for event in step.computed}
        for tensor, push in plan.pushes.items():
            if tensor in step.arrived and push.served == "aggregate" and push.update in done:
                added[push.variable].append((done[push.update], step, tensor))
    for pushes in added.values():
        pushes.sort(key=lambda one: one[0])
    for event in (event for step in steps if step.peer is None for event in step.computed):
        update = plan.applied.get(event.name.partition(":")[0])
        earlier_pushes = added.get(update.variable, []) if update and update.shard == shard else []
        push_index = bisect_right(earlier_pushes, event.start_ns, key=lambda one: one[0]) - 1
        if update and push_index >= 0:
            _, step, tensor = earlier_pushes[push_index]
            yield _make_server_span("apply", step, tensor, update, (event.start_ns, event.end_ns))


def _make_server_span(
    op: str, step: _Step, tensor: str, transfer: Transfer, times: tuple[int, int]
) -> Seen:
    """What a server does for a worker."""
    assert step.peer is not None
    values = _transfer_values(transfer, step.request(step.peer, tensor)) | {"peer": step.peer}
    return Seen(f"{op} {transfer.variable}", "ps", op, *times, transfer.shard, None, values)


def _transfer_values(transfer: Transfer, request: int) -> dict[str, Any]:
    size = {} if transfer.nbytes is None else {"nbytes": transfer.nbytes}
    return size | {"request": request}
