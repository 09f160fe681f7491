"""What TensorFlow's profiler saw becomes steps, phases and requests, the same on both ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tracelens_instrument.hooks.tensorflow.plan import Plan, Transfer
from tracelens_instrument.hooks.tensorflow.spans import Event, ProfiledSpan, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterable

PULLED = Transfer("weights", 1, 4096)
PUSHED = Transfer("weights", 1, 4096, "AssignSubVariableOp")
PLAN = Plan({"MatMul/ReadVariableOp": PULLED}, {"mul": PUSHED}, 0, 10**9)
STEP, WORKER, SHARD = -77, 3, 1
KEY = "/job:ps/replica:0/task:1/device:CPU:0;1;/job:worker/replica:0/task:3/device:CPU:0;edge;0:0"
MAIN, QUEUE = (1, 10), (1, 20)


def _waiting(state: str, tensor: str, start_ns: int, end_ns: int, step: int = STEP) -> Event:
    about = {"name": f"{tensor}/_2", "kernel_type": "_Recv", "step_id": step}
    line = MAIN if state == "Start" else QUEUE
    return Event(line, f"ExecutorState::ProcessAsync::{state}", start_ns, end_ns, about)


def _operator(name: str, start_ns: int, end_ns: int) -> Event:
    return Event(MAIN, name, start_ns, end_ns)


def _executor(start_ns: int, end_ns: int, step: int = STEP) -> Event:
    return Event(MAIN, "ExecutorState::Process", start_ns, end_ns, {"id": step})


def _worker() -> list[Event]:
    """Pull from 0 to 40, forward 50 to 60, backprop 60 to 75, push from 80 to its answer at 99."""
    return [
        _waiting("Start", "MatMul/ReadVariableOp", 0, 5),
        _waiting("Start", "AssignSubVariableOp", 5, 6),
        _waiting("Done", "MatMul/ReadVariableOp", 38, 40),
        _executor(45, 95),
        _operator("Relu:Relu", 50, 60),
        _operator("gradient_tape/ReluGrad:ReluGrad", 60, 70),
        _operator("mul:Mul", 70, 75),
        Event(MAIN, "mul/_9:_Send", 80, 82, {"key": KEY}),
        _waiting("Done", "AssignSubVariableOp", 98, 99),
    ]


def _server() -> list[Event]:
    """The same step on the server: reply from 10, the gradient comes at 85, applied from 86."""
    return [
        _executor(8, 30),
        Event(MAIN, "MatMul/ReadVariableOp/_1:_Send", 10, 12, {"key": KEY}),
        _waiting("Start", "mul", 14, 16),
        _waiting("Done", "mul", 84, 85),
        _executor(86, 95),
        _operator("AssignSubVariableOp:AssignSubVariableOp", 87, 91),
    ]


def _spans_by_op(events: Iterable[Event], role: str, number: int) -> dict[str, ProfiledSpan]:
    spans = list(spans_of(events, role, number, PLAN))
    by_op = {span.op or span.kind: span for span in spans}
    assert len(by_op) == len(spans)
    return by_op


def _times(seen: ProfiledSpan) -> tuple[int, int]:
    return seen.start_ns, seen.end_ns


def test_a_workers_step_has_phases_and_requests() -> None:
    """Its phases are spans of its thread; requests are in flight, each on a lane of its own."""
    spans_by_op = _spans_by_op(_worker(), "worker", WORKER)
    assert {name: _times(span) for name, span in spans_by_op.items()} == {
        "step": (0, 99),
        "forward": (50, 60),
        "backprop": (60, 75),
        "pull": (0, 40),
        "push": (80, 99),
    }
    assert {span.values["step"] for span in spans_by_op.values()} == {0}
    assert (spans_by_op["pull"].lane, spans_by_op["push"].lane) == (0, 1)
    assert spans_by_op["pull"].shard == SHARD
    assert spans_by_op["pull"].values["nbytes"] == 4096


def test_a_servers_step_has_services() -> None:
    spans_by_op = _spans_by_op(_server(), "ps", SHARD)
    assert {name: _times(span) for name, span in spans_by_op.items()} == {
        "reply": (10, 12),
        "receive": (84, 85),
        "apply": (87, 91),
    }
    assert {span.values["peer"] for span in spans_by_op.values()} == {WORKER}
    assert {span.lane for span in spans_by_op.values()} == {None}


def test_both_ends_name_the_same_requests() -> None:
    """A pull is a reply, a push is received and applied; another step has other requests."""
    worker, server = _spans_by_op(_worker(), "worker", WORKER), _spans_by_op(_server(), "ps", SHARD)
    request = {name: seen.values.get("request") for name, seen in (worker | server).items()}
    assert request["pull"] == request["reply"]
    assert request["push"] == request["receive"] == request["apply"]
    assert request["pull"] != request["push"]
    assert {number >> 40 for number in request.values() if number is not None} == {WORKER}


def test_between_steps_a_worker_waits_for_the_coordinator() -> None:
    next_step = [
        replace(
            event,
            start_ns=event.start_ns + 200,
            end_ns=event.end_ns + 200,
            stats={name: 5 if value == STEP else value for name, value in event.stats.items()},
        )
        for event in _worker()
    ]
    (idle,) = (
        s for s in spans_of(_worker() + next_step, "worker", WORKER, PLAN) if s.op == "launch"
    )
    assert (idle.kind, *_times(idle)) == ("wait", 99, 200)


def test_another_servers_variables_are_not_served_here() -> None:
    assert not list(spans_of(_server(), "ps", 0, PLAN))


def test_steps_of_others_are_left_out() -> None:
    """A function without pushes and pulls is no part of training."""
    events = [_executor(0, 50), _operator("Identity:Identity", 10, 20)]
    assert not list(spans_of(events, "worker", WORKER, PLAN))


@pytest.mark.parametrize("cut", range(len(_worker())))
def test_a_window_may_begin_anywhere(cut: int) -> None:
    """What the profiler missed is left out, and nothing fails."""
    for seen in spans_of(_worker()[cut:], "worker", WORKER, PLAN):
        assert seen.start_ns <= seen.end_ns
