"""What a session runs becomes numbered steps, computation without pauses, and updates in step."""

from __future__ import annotations

from tracelens_instrument.hooks.tensorflow.plan import Plan, Transfer
from tracelens_instrument.hooks.tensorflow.spans import Event, ProfiledSpan, Run, spans_of

WORKER, SHARD = 3, 1
PLAN = Plan(
    pull_by_tensor={"w/read": Transfer("w", SHARD, 4096)},
    push_by_tensor={"gradients/mul": Transfer("w", SHARD, None, "AccumulatorApply", "aggregate")},
    begin_ns=0,
    end_ns=10**9,
    server_updates={"update_w/ApplyGradientDescent": Transfer("w", SHARD, 4096)},
    token_operations=["sync_token_q_Dequeue"],
)
RUNS = (Run(0, 1_000_000, 41), Run(1_100_000, 2_000_000, 42))
KEY = "/job:ps/replica:0/task:1/device:CPU:0;1;/job:worker/replica:0/task:3/device:CPU:0;edge;0:0"
MAIN, QUEUE = (1, 10), (1, 20)


def _waiting(state: str, tensor: str, start_ns: int, end_ns: int, step: int = 7) -> Event:
    about = {"name": f"{tensor}_S2", "kernel_type": "_Recv", "step_id": step}
    line = MAIN if state == "Start" else QUEUE
    return Event(line, f"ExecutorState::ProcessAsync::{state}", start_ns, end_ns, about)


def _executed(name: str, start_ns: int, end_ns: int, step: int = 7, **about: str) -> Event:
    return Event(MAIN, name, start_ns, end_ns, {"step_id": step, **about})


def _worker() -> list[Event]:
    """Draw from 10 to 20 µs, have the variable at 400, compute until 700, have the token at 950."""
    return [
        _waiting("Start", "w/read", 5_000, 6_000),
        _waiting("Start", "sync_token_q_Dequeue", 6_000, 7_000),
        _executed("random_normal:RandomStandardNormal", 10_000, 20_000),
        _waiting("Done", "w/read", 399_000, 400_000),
        _executed("MatMul:MatMul", 410_000, 500_000),
        _executed("gradients/mul:Mul", 500_000, 700_000),
        _executed("gradients/mul_S9:_Send", 700_000, 701_000, key=KEY),
        _waiting("Done", "sync_token_q_Dequeue", 949_000, 950_000),
    ]


def _name_and_times(seen: list[ProfiledSpan]) -> list[tuple[str, int, int]]:
    return [(one.op or one.kind, one.start_ns, one.end_ns) for one in seen]


def test_a_run_is_a_step() -> None:
    """It has the number that the session gave it, and no computation while a variable is awaited."""
    spans = list(spans_of(_worker(), "worker", WORKER, PLAN, RUNS))
    assert sorted(_name_and_times(spans)) == [
        ("backprop", 500_000, 700_000),
        ("forward", 10_000, 20_000),
        ("forward", 410_000, 500_000),
        ("pull", 5_000, 400_000),
        ("push", 700_000, 950_000),
        ("step", 0, 1_000_000),
        ("wait", 701_000, 950_000),
    ]
    assert {span.values["step"] for span in spans} == {41}


def test_bytes_that_only_a_run_knows_are_not_recorded() -> None:
    (push,) = (one for one in spans_of(_worker(), "worker", WORKER, PLAN, RUNS) if one.op == "push")
    assert "nbytes" not in push.values


def test_what_began_before_the_first_run_seen_is_left_out() -> None:
    later = (Run(500_000, 1_000_000, 42),)
    assert not list(spans_of(_worker(), "worker", WORKER, PLAN, later))


def test_an_update_in_step_belongs_to_the_last_push_before_it() -> None:
    """The chief's own run makes it, in which no worker is named."""
    events = [
        _executed("w/read_S1:_Send", 0, 1, key=KEY),
        _waiting("Done", "gradients/mul", 10, 11),
        _executed("AccumulatorApply:ResourceAccumulatorApplyGradient", 12, 20),
        _executed("update_w/ApplyGradientDescent:ApplyGradientDescent", 30, 40, step=8),
    ]
    served = {one.op: one for one in spans_of(events, "ps", SHARD, PLAN)}
    assert _name_and_times(list(served.values())) == [
        ("reply", 0, 1),
        ("receive", 10, 11),
        ("aggregate", 12, 20),
        ("apply", 30, 40),
    ]
    assert served["apply"].values["request"] == served["aggregate"].values["request"]
    assert served["apply"].values["peer"] == WORKER
