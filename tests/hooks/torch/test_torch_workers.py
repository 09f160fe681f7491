"""Batches that worker processes fetch: each is matched to the wait for it, however workers start."""

from pathlib import Path
from typing import Any

import pytest
from support.imports import LateModule
from support.launch.recording import Recorded, read_all, read_one
from support.launch.torch_training import Training

import tracelens as tl

# Where there is one core only, PyTorch warns of a second worker.
pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

data: Any = LateModule("torch.utils.data")
classes: Any = LateModule("support.launch.torch_classes")
BATCHES = 5


def _train(trace: Path, batches: Any, epochs: int = 1) -> tuple[Recorded, list[float]]:
    """Train on all batches; return what was recorded, and what was in them."""
    training = Training()
    tl.attach(training.model, optimizer=training.optimizer, loader=batches)
    samples = []
    for _ in range(epochs):
        for batch in batches:
            samples += batch[:, 0].tolist()
            training.step(batch)
    tl.stop()
    return read_one(trace), samples


def _check(recorded: Recorded, batches: int, workers: int) -> None:
    """Each batch has one fetch, before its wait is over, on the track of its worker."""
    waits = {e["request"]: e for e in recorded.named("data") if e["type"] == "span"}
    fetches = recorded.named("fetch")
    assert len({event["request"] for event in fetches}) == len(fetches) == batches
    names = {thread.index: thread.name for thread in recorded.side.threads if thread.in_flight}
    tracks = {names[event["thread"]] for event in fetches}
    assert tracks == {f"loader worker {worker}" for worker in range(workers)}
    for event in fetches:
        wait = waits[event["request"]]
        assert event["kind"] == "data"
        assert event["start_ns"] + event["duration_ns"] <= wait["start_ns"] + wait["duration_ns"]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_batch_has_its_fetch(start: str, trace: Path) -> None:
    """Where workers stay for two epochs, too; the batches are the same as ever."""
    batches = data.DataLoader(
        classes.Rows(), 2, num_workers=2, persistent_workers=True, multiprocessing_context=start
    )
    recorded, seen = _train(trace, batches, epochs=2)
    _check(recorded, 2 * BATCHES, workers=2)
    assert seen == [float(index) for index in range(2 * BATCHES)] * 2
    fetches = sorted(recorded.named("fetch"), key=lambda event: event["request"])
    assert [event["key"] for event in fetches] == list(range(BATCHES)) * 2
    assert all(e["queue_depth"] is not None for e in recorded.named("data") if e["request"])


def test_a_stream_is_fetched_by_its_workers(trace: Path) -> None:
    recorded, seen = _train(trace, data.DataLoader(classes.Stream(), 2, num_workers=2))
    assert sorted(seen) == [float(index) for index in range(2 * BATCHES)]
    _check(recorded, 6, workers=2)  # of five rows each, three batches


def test_the_users_initialization_runs(trace: Path) -> None:
    batches = data.DataLoader(classes.Rows(), 2, num_workers=1, worker_init_fn=classes.Shift())
    recorded, seen = _train(trace, batches)
    assert seen == [100.0 + index for index in range(2 * BATCHES)]
    _check(recorded, BATCHES, workers=1)


def test_workers_write_no_files(trace: Path) -> None:
    """Also where a dataset reads from a loader of its own, whose batches are nobody's business."""
    recorded, _ = _train(trace, data.DataLoader(classes.Nested(), 2, num_workers=1))
    assert len(read_all(trace)) == 1
    _check(recorded, BATCHES, workers=1)


def test_a_worker_that_fails_fails_as_ever(trace: Path) -> None:
    class Broken(classes.Rows):
        def __getitem__(self, index: int) -> Any:
            raise ValueError(index)

    batches = data.DataLoader(Broken(), num_workers=1)
    tl.attach(Training().model, loader=batches)
    with pytest.raises(ValueError, match="0"):
        list(batches)
    tl.stop()
    recorded = read_one(trace)
    assert recorded.one("data")["status"] == "exception"
    assert not recorded.named("fetch")
