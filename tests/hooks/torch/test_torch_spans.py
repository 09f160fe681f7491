"""An attached model records its forward and backward passes, updates and batches, step by step."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from support.launch.recording import Recorded, read_one
from support.launch.torch_training import Training, loader, torch

import tracelens as tl

STEPS = 3


def _record(trace: Path, detail: str = "layer") -> Recorded:
    training = Training()
    batches = loader(STEPS)
    same = tl.attach(training.model, optimizer=training.optimizer, loader=batches, detail=detail)
    assert same is training.model
    for batch in batches:
        training.step(batch)
    tl.stop()
    return read_one(trace)


def _spans(recorded: Recorded, kind: str) -> list[dict[str, Any]]:
    return [e for e in recorded.events if e["kind"] == kind and e["type"] == "span"]


def _is_inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return (
        outer["start_ns"] <= inner["start_ns"]
        and inner["start_ns"] + inner["duration_ns"] <= outer["start_ns"] + outer["duration_ns"]
    )


def test_every_step_has_each_phase_once_and_in_order(trace: Path) -> None:
    recorded = _record(trace, detail="phase")
    spans = [event for event in recorded.events if event["type"] == "span"]
    kinds = [event["kind"] for event in spans if event["kind"] != "step"]
    start, *kinds = kinds
    assert start == "data"
    assert kinds == ["data", "forward", "backprop", "update"] * STEPS + ["data"]
    assert all(event["status"] == "closed" for event in recorded.events)


def test_steps_touch_and_hold_their_events(trace: Path) -> None:
    recorded = _record(trace)
    steps = _spans(recorded, "step")
    assert [step["step"] for step in steps] == [0, 1, 2]
    for before, after in pairwise(steps):
        assert before["start_ns"] + before["duration_ns"] <= after["start_ns"]
    for event in recorded.events:
        if event["step"] < STEPS:
            assert _is_inside(event, steps[event["step"]]), event


def test_layers_lie_in_the_passes_forwards_and_backwards(trace: Path) -> None:
    recorded = _record(trace)
    for kind, order in (("forward", ["0", "1", "2"]), ("backprop", ["2", "1", "0"])):
        passes = [event for event in _spans(recorded, kind) if event["name"] == kind]
        layers = [event for event in _spans(recorded, kind) if event["name"] != kind]
        assert [event["name"] for event in layers] == order * STEPS
        assert all(_is_inside(layer, passes[layer["step"]]) for layer in layers)


def test_layers_are_not_recorded_where_phases_are_asked_for(trace: Path) -> None:
    recorded = _record(trace, detail="phase")
    assert {event["name"] for event in _spans(recorded, "forward")} == {"forward"}
    assert {event["name"] for event in _spans(recorded, "backprop")} == {"backprop"}


def test_attaching_twice_records_once(trace: Path) -> None:
    training = Training()
    for _ in range(2):
        tl.attach(training.model, optimizer=training.optimizer)
    training.step()
    tl.stop()
    recorded = read_one(trace)
    assert len(recorded.named("forward")) == len(recorded.named("SGD")) == 1


def test_a_failing_layer_fails_its_spans_and_those_around(trace: Path) -> None:
    training = Training()
    tl.attach(training.model, detail="layer")
    try:
        training.model(torch.ones(1, 3))
    except RuntimeError:
        pass
    else:
        raise AssertionError
    tl.stop()
    recorded = read_one(trace)
    assert recorded.one("forward")["status"] == "exception"
    assert recorded.one("0")["status"] == "exception"
    assert recorded.one("step")["status"] == "open"


def test_the_users_own_steps_win(trace: Path) -> None:
    training = Training()
    tl.attach(training.model, optimizer=training.optimizer)
    for number in (7, 8):
        with tl.step(number):
            training.step()
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("step")] == [7, 8]
    assert [event["step"] for event in recorded.named("SGD")] == [7, 8]


def test_steps_begin_with_the_recording(trace: Path) -> None:
    """Also where the training has long begun."""
    tl.stop()
    training = Training()
    tl.attach(training.model, optimizer=training.optimizer)
    training.step()
    tl.start(trace / "late")
    training.step()
    training.step()
    tl.stop()
    recorded = read_one(trace / "late")
    assert [event["step"] for event in recorded.named("SGD")] == [0, 1]


def test_an_epoch_loop_numbers_its_steps_on(trace: Path) -> None:
    training = Training()
    batches = loader(2)
    tl.attach(training.model, optimizer=training.optimizer, loader=batches)
    for _ in range(2):
        for batch in batches:
            training.step(batch)
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("step")] == [0, 1, 2, 3]
    assert [event["status"] for event in recorded.named("data")] == ["closed"] * 6


def test_steps_count_the_samples_that_they_train_on(trace: Path) -> None:
    """Each step its own, also the short last batch; what is only evaluated does not count."""
    training = Training()
    batches = torch.utils.data.DataLoader(torch.ones(11, 8), 4)
    tl.attach(training.model, optimizer=training.optimizer, loader=batches)
    for batch in batches:
        training.step(batch)
    training.model.eval()
    for batch in batches:
        training.model(batch)
    tl.stop()
    counters = read_one(trace).named("samples")
    assert [(event["step"], event["value"]) for event in counters] == [(0, 4), (1, 4), (2, 3)]


def test_every_update_counts_to_the_step_of_its_batch(trace: Path) -> None:
    """Of two optimizers, also where the second's pass comes after the first's update."""
    training, other_training = Training(), Training()
    batches = loader(STEPS)
    for one_training in (training, other_training):
        tl.attach(one_training.model, optimizer=one_training.optimizer, loader=batches)
    for batch in batches:
        training.step(batch)
        other_training.step(batch)
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("SGD")] == [0, 0, 1, 1, 2, 2]
    steps = _spans(recorded, "step")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert all(_is_inside(update, steps[update["step"]]) for update in recorded.named("SGD"))


def test_a_batch_fetched_ahead_does_not_end_its_step(trace: Path) -> None:
    """Prefetching: it is trained on in the next step, which begins there."""
    training = Training()
    batches = loader(STEPS)
    tl.attach(training.model, optimizer=training.optimizer, loader=batches)
    ahead = iter(batches)
    batch = next(ahead)
    while batch is not None:
        loss = training.model(batch).square().mean()
        batch = next(ahead, None)
        loss.backward()
        training.optimizer.step()
    tl.stop()
    recorded = read_one(trace)
    for kind in ("forward", "backprop", "update"):
        assert [event["step"] for event in _spans(recorded, kind)] == [0, 1, 2]


def test_the_last_step_ends_with_its_update(trace: Path) -> None:
    """What a program does after its training belongs to no step."""
    training = Training()
    tl.attach(training.model, optimizer=training.optimizer)
    training.step()
    with tl.span("save"):
        pass
    tl.stop()
    recorded = read_one(trace)
    step, save = recorded.one("step"), recorded.one("save")
    assert step["status"] == "closed"
    assert step["start_ns"] + step["duration_ns"] <= save["start_ns"]
