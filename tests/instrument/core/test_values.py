"""What is said of a use of a span arrives in its column; what does not fit costs only itself."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument import recorder

VALUES: dict[str, tuple[str, int]] = {
    "nbytes": ("bytes", 2**40),
    "seq": ("seq", 2**32 - 2),
    "bucket": ("bucket", 2**31 - 1),
    "peer": ("peer", 17),
    "key": ("key", 0),
    "request": ("request", 2**64 - 1),
    "queue_depth": ("queue_depth", 2**16 - 2),
    "micro_step": ("micro_step", 0),
    "step": ("step", 2**31 - 1),
}
COLUMNS = [column for column, _ in VALUES.values()]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("form", ["with", "begin", "complete"])
def test_value_arrives_alone(trace: Path, name: str, form: str) -> None:
    """Each keyword fills its own column and no other."""
    column, value = VALUES[name]
    values: dict[str, Any] = {name: value}
    span = tl.span("piece")
    if form == "with":
        with span(**values):
            pass
    elif form == "begin":
        span.begin(**values).end()
    else:
        span.complete(1000, 2000, **values)
    tl.stop()
    event = read_one(trace).one("piece")
    outside = {"step": -1}
    assert {key: event[key] for key in COLUMNS} == dict.fromkeys(COLUMNS) | outside | {
        column: value
    }


def test_constants_of_a_handle_arrive(trace: Path) -> None:
    """The values of a handle are part of each of its events."""
    group = recorder.communicator([0, 2], "pair")
    span = tl.span(
        "sum", kind="reduction", op="allreduce", algorithm="ring", communicator=group, shard=3
    )
    with span:
        pass
    tl.stop()
    recorded = read_one(trace)
    event = recorded.one("sum")
    assert (event["kind"], event["op"], event["algorithm"]) == ("reduction", "allreduce", "ring")
    assert (event["communicator"], event["shard"]) == (group, 3)
    (row,) = [row for row in recorded.side.communicators if row.index == group]
    assert (row.name, row.ranks) == ("pair", [0, 2])


@pytest.mark.parametrize(
    "values",
    [
        {"seq": -1},
        {"seq": 2**32},
        {"nbytes": 2**63},
        {"queue_depth": 70_000},
        {"peer": "left"},
        {"key": 2**31},
        {"request": object()},
        {"micro_step": -1},
    ],
)
def test_value_out_of_range_is_left_out_and_counted(trace: Path, values: dict[str, Any]) -> None:
    """The event is kept, the value is not, and the loss is told."""
    with tl.span("piece")(**values):
        pass
    tl.stop()
    recorded = read_one(trace)
    event = recorded.one("piece")
    assert [event[column] for column in COLUMNS if column != "step"] == [None] * 8
    assert event["duration_ns"] >= 0
    assert recorded.side.dropped == {"value out of range": 1}


def test_none_means_does_not_apply(trace: Path) -> None:
    """A value of None is no mistake, and the others are kept."""
    values: dict[str, Any] = {"seq": None, "nbytes": None, "bucket": 4}
    with tl.span("piece")(**values):
        pass
    tl.stop()
    recorded = read_one(trace)
    event = recorded.one("piece")
    assert (event["seq"], event["bytes"], event["bucket"]) == (None, None, 4)
    assert recorded.side.dropped == {}


def test_numbers_of_other_libraries(trace: Path) -> None:
    """Whatever is an integer, or is exactly as good as one, is taken."""
    np = pytest.importorskip("numpy")
    with tl.span("piece")(nbytes=np.int64(5), seq=np.uint8(7), bucket=np.float32(2.0)):
        pass
    tl.stop()
    event = read_one(trace).one("piece")
    assert (event["bytes"], event["seq"], event["bucket"]) == (5, 7, 2)


def test_instant_and_counter(trace: Path) -> None:
    """An instant carries values, a counter its number; neither lasts."""
    tl.instant("saved", kind="checkpoint", key=4)
    tl.counter("loss", 0.25)
    tl.stop()
    recorded = read_one(trace)
    saved, loss = recorded.one("saved"), recorded.one("loss")
    assert (saved["type"], saved["kind"], saved["key"]) == ("instant", "checkpoint", 4)
    assert (loss["type"], loss["value"], loss["request"]) == ("counter", 0.25, None)
    assert (saved["duration_ns"], loss["duration_ns"]) == (0, 0)
    assert (saved["value"], saved["status"], loss["status"]) == (None, "closed", "closed")


def test_completed_span_keeps_its_times(trace: Path) -> None:
    """What is recorded afterwards stands where it was, on its track, with its status."""
    track = recorder.track("in flight")
    span = tl.span("piece")
    span.complete(1000, 3000, track=track)
    span.complete(2000, 2500, failed=True)
    span.complete(4000, 4500, estimated=True)
    tl.stop()
    recorded = read_one(trace)
    pieces = recorded.named("piece")
    assert [(e["start_ns"], e["duration_ns"]) for e in pieces] == [
        (1000, 2000),
        (2000, 500),
        (4000, 500),
    ]
    assert [e["status"] for e in pieces] == ["closed", "exception", "estimated"]
    assert pieces[0]["thread"] == track
    (row,) = [row for row in recorded.side.threads if row.index == track]
    assert (row.name, row.in_flight) == ("in flight", True)


def test_times_that_are_no_numbers(trace: Path) -> None:
    """A span with unusable times is left out and counted, and the caller sees nothing of it."""
    start: Any = "soon"
    tl.span("piece").complete(start, 5)
    tl.stop()
    recorded = read_one(trace)
    assert recorded.named("piece") == []
    assert recorded.side.dropped == {"value out of range": 1}


@pytest.mark.parametrize("name", ["", "日本 🚂", "half \ud800 character", 'quo"te\n\0', "x" * 5000])
def test_any_text_may_be_a_name(trace: Path, name: str) -> None:
    """It is kept, up to a length, and never costs the recording."""
    with tl.span(name):
        pass
    tl.stop()
    recorded = read_one(trace)
    assert [e["name"] for e in recorded.events] == [name[:1000].encode(errors="replace").decode()]


def test_handle_may_be_copied_and_sent(trace: Path) -> None:
    """A copy is the same kind of work, and keeps its own uses apart."""
    span = tl.span("piece", kind="reduction", op="allreduce")
    copied = copy.deepcopy(span)
    sent = pickle.loads(pickle.dumps(span))  # noqa: S301 - our own, made in the same line
    with span, copied, sent, span:
        pass
    tl.stop()
    pieces = read_one(trace).named("piece")
    assert [(e["op"], e["depth"], e["status"]) for e in pieces] == [
        ("allreduce", depth, "closed") for depth in range(4)
    ]


def test_mistakes_in_instants_and_counters(trace: Path) -> None:
    """A wrong kind costs the kind; a wrong keyword is Python's error, recording or not."""
    with pytest.warns(RuntimeWarning, match="kind is 'nope', expected one of step"):
        tl.instant("instant", kind="nope")
    wrong: Any = {"color": 1}
    with pytest.raises(TypeError, match=r"instant\(\) takes the values nbytes"):
        tl.instant("instant", **wrong)
    value: Any = "much"
    tl.counter("counter", value)
    tl.stop()
    with pytest.raises(TypeError, match="takes the values"):
        tl.instant("instant", **wrong)
    recorded = read_one(trace)
    assert [(e["name"], e["kind"]) for e in recorded.events] == [("instant", "user")]
    assert recorded.side.dropped == {"value out of range": 1}
