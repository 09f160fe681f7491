"""At detail op the operators of a model are recorded, in their layers, forwards and backwards."""

from pathlib import Path
from typing import Any

import pytest
from support.imports import LateModule
from support.launch.recording import read_one
from support.launch.torch_training import Training, network, torch

import tracelens as tl

classes: Any = LateModule("support.launch.torch_classes")


def _is_inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return (
        outer["start_ns"] <= inner["start_ns"]
        and inner["start_ns"] + inner["duration_ns"] <= outer["start_ns"] + outer["duration_ns"]
    )


def test_operators_lie_in_their_layers(trace: Path) -> None:
    """A layer with one operator: it is as long as that, in both passes."""
    Training(tl.attach(network(), detail="op")).step()
    tl.stop()
    recorded = read_one(trace)
    for kind, order in (("forward", ["0", "1", "2"]), ("backprop", ["2", "1", "0"])):
        events = [event for event in recorded.events if event["kind"] == kind]
        (pass_event,) = (event for event in events if event["name"] == kind)
        layers = [event for event in events if event["name"] in order]
        operators = [event for event in events if event not in (pass_event, *layers)]
        assert [event["name"] for event in layers] == order
        assert [event["name"] for event in operators] == ["linear", "relu", "linear"]
        for layer, operator in zip(layers, operators, strict=True):
            assert _is_inside(operator, layer)
            assert _is_inside(layer, pass_event)
            assert operator["depth"] == layer["depth"] + 1


def test_operators_outside_of_layers(trace: Path) -> None:
    """Those that the user's own forward calls, in place or not."""
    model = classes.OwnOperators()
    tl.attach(model, detail="op")
    model(torch.ones(2, 8)).sum().backward()
    tl.stop()
    recorded = read_one(trace)
    names = ["mul", "layer_norm", "relu_"]
    for kind, order in (("forward", names), ("backprop", names[::-1])):
        found = [event["name"] for event in recorded.events if event["kind"] == kind]
        assert [name for name in found if name in names] == order


def test_a_failing_operator_fails(trace: Path) -> None:
    """And nothing stays behind: what comes after is not taken for the model's."""
    model = tl.attach(network(), detail="op")
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 3))
    torch.ones(1).exp()
    tl.stop()
    recorded = read_one(trace)
    assert recorded.one("linear")["status"] == "exception"
    assert not recorded.named("exp")


@pytest.mark.usefixtures("trace")
@pytest.mark.slow
def test_a_compiled_model_compiles_whole() -> None:
    model = tl.attach(network(), detail="op")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 8)), network()(torch.ones(1, 8)))


def test_a_compiled_part_is_one(trace: Path) -> None:
    """Its result is unchanged, and the operators around it are recorded."""
    outer_part, inner = (
        network(),
        torch.nn.Sequential(torch.nn.Linear(1, 8), classes.OwnOperators()),
    )
    model = torch.nn.Sequential(outer_part, torch.compile(inner, backend="eager"))
    with torch.no_grad():  # else PyTorch warns of what it compiles
        expected = inner(outer_part(torch.ones(2, 8)))
        tl.attach(model, detail="op")
        assert torch.equal(model(torch.ones(2, 8)), expected)
    tl.stop()
    assert len(read_one(trace).named("relu")) == 1
