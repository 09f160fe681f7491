"""Layers whose activations are computed anew in the backward pass are recorded as what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.launch.recording import read_one
from support.launch.torch_training import torch
from torch.utils.checkpoint import checkpoint

import tracelens as tl

if TYPE_CHECKING:
    from pathlib import Path


class Network(torch.nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.again = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 1)
        self.reentrant = reentrant
        self.broken = False

    def inner(self, values: Any) -> Any:
        if self.broken:
            values = values[:, :3]
        return self.again(values)

    def forward(self, values: Any) -> Any:
        hidden = checkpoint(self.inner, self.first(values), use_reentrant=self.reentrant)
        return self.last(hidden)


@pytest.mark.parametrize("reentrant", [False, True])
def test_computing_anew_is_no_failure(reentrant: bool, trace: Path) -> None:  # noqa: FBT001 - pytest names it
    """PyTorch breaks off the second time by an exception of its own as soon as it has enough."""
    model = Network(reentrant=reentrant)
    tl.attach(model, detail="layer")
    model(torch.ones(4, 8)).sum().backward()
    tl.stop()
    recorded = read_one(trace)
    layers = recorded.named("again.0")
    forward = [event for event in layers if event["kind"] == "forward"]
    (whole,) = recorded.named("backprop")
    assert len(forward) == 2
    assert forward[0]["start_ns"] < whole["start_ns"] < forward[1]["start_ns"]
    spans = [event for event in recorded.events if event["kind"] in ("forward", "backprop")]
    assert {event["status"] for event in spans} == {"closed"}


def test_a_failure_while_computing_anew_is_one(trace: Path) -> None:
    model = Network(reentrant=False)
    tl.attach(model, detail="layer")
    output = model(torch.ones(4, 8))
    model.broken = True
    with pytest.raises(RuntimeError):
        output.sum().backward()
    tl.stop()
    recorded = read_one(trace)
    assert [event["status"] for event in recorded.named("again.0")] == ["closed", "exception"]
    assert recorded.one("backprop")["status"] == "exception"
