"""Layers whose activations are computed anew in the backward pass are recorded as what they are."""

from pathlib import Path
from typing import Any

import pytest
from support.imports import LateModule
from support.launch.recording import read_one
from support.launch.torch_training import torch

import tracelens as tl

classes: Any = LateModule("support.launch.torch_classes")


@pytest.mark.parametrize("reentrant", [False, True])
def test_computing_anew_is_no_failure(reentrant: bool, trace: Path) -> None:  # noqa: FBT001 - pytest names it
    """PyTorch breaks off the second time by an exception of its own as soon as it has enough."""
    model = classes.Checkpointed(reentrant=reentrant)
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
    model = classes.Checkpointed(reentrant=False)
    tl.attach(model, detail="layer")
    output = model(torch.ones(4, 8))
    model.broken = True
    with pytest.raises(RuntimeError):
        output.sum().backward()
    tl.stop()
    recorded = read_one(trace)
    assert [event["status"] for event in recorded.named("again.0")] == ["closed", "exception"]
    assert recorded.one("backprop")["status"] == "exception"
