"""Batches of any attached loader are recorded, but only where the training fetches them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launch.recording import read_one
from support.launch.torch_training import Training, loader, torch

import tracelens as tl


class Ours:
    """A loader of a user's own."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.batches):
            yield torch.ones(4, 8)


def test_a_loader_of_any_class_is_recorded(trace: Path) -> None:
    training = Training()
    attached, unattached = Ours(2), Ours(3)
    tl.attach(training.model, optimizer=training.optimizer, loader=attached)
    for batch in attached:
        training.step(batch)
    assert len(list(unattached)) == len(unattached)
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("data")] == [0, 1, 2]
    assert {event["status"] for event in recorded.named("data")} == {"closed"}


def test_a_batch_that_fails_fails_its_span(trace: Path) -> None:
    class Broken(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            raise ValueError(index)

    batches = torch.utils.data.DataLoader(Broken())
    tl.attach(Training().model, loader=batches)
    with pytest.raises(ValueError, match="0"):
        list(batches)
    tl.stop()
    assert read_one(trace).one("data")["status"] == "exception"


def test_an_optimizer_from_before_the_recording_makes_no_steps(trace: Path) -> None:
    """Though it is still there, and made the first step of all."""
    tl.stop()
    before, training = Training(), Training()
    tl.attach(before.model, optimizer=before.optimizer)
    before.step()
    tl.start(trace / "second")
    batches = loader(2)
    tl.attach(training.model, optimizer=training.optimizer, loader=batches)
    for batch in batches:
        training.step(batch)
    tl.stop()
    recorded = read_one(trace / "second")
    assert [event["step"] for event in recorded.named("data")] == [0, 1, 2]
