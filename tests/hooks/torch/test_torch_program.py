"""Attaching changes nothing of the user's program: what it saves, copies, compiles, and is warned of."""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
from typing import TYPE_CHECKING, Any

import pytest
from support.launch.recording import read_one
from support.launch.torch_training import Training, group_of_one, network, torch

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens_instrument import hooks
from tracelens_instrument.hooks.torch import backward, buckets, modules, process_groups

if TYPE_CHECKING:
    from pathlib import Path


def test_attaching_without_a_recording_trains_as_ever() -> None:
    plain, attached = Training(), Training()
    tl.attach(attached.model, optimizer=attached.optimizer)
    for training in (plain, attached):
        training.step()
    for left, right in zip(plain.model.parameters(), attached.model.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.usefixtures("trace")
def test_a_model_saved_whole_does_not_need_tracelens() -> None:
    training = Training(tl.attach(network()))
    training.step()
    saved = pickle.dumps(training.model)
    words = [str(argument) for _, argument, _ in pickletools.genops(saved)]
    assert not [word for word in words if "tracelens" in word]
    loaded = pickle.loads(saved)  # noqa: S301 - our own
    assert torch.equal(loaded(torch.ones(1, 8)), training.model(torch.ones(1, 8)))


def test_a_copy_of_a_model_does_not_record(trace: Path) -> None:
    model = tl.attach(network())
    average = copy.deepcopy(model)
    average(torch.ones(1, 8))
    model(torch.ones(1, 8))
    tl.stop()
    assert len(read_one(trace).named("forward")) == 1


@pytest.mark.usefixtures("trace")
def test_outputs_can_be_saved() -> None:
    """A hook on an output tensor would make PyTorch warn here."""
    output = tl.attach(network())(torch.ones(1, 8))
    torch.save(output, io.BytesIO())


def test_a_first_layer_whose_input_needs_no_gradient_does_not_warn(trace: Path) -> None:
    training = Training(tl.attach(network(), detail="layer"))
    training.step(torch.ones(4, 8, requires_grad=False))
    tl.stop()
    assert [event["kind"] for event in read_one(trace).named("0")] == ["forward", "backprop"]


@pytest.mark.usefixtures("trace")
@pytest.mark.slow
def test_a_compiled_model_compiles_whole() -> None:
    model = tl.attach(network(), detail="layer")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(1, 8)), network()(torch.ones(1, 8)))


def test_gradients_without_backward_are_left_alone(trace: Path) -> None:
    model = tl.attach(network())
    torch.autograd.grad(model(torch.ones(1, 8)).sum(), list(model.parameters()))
    tl.stop()
    assert not [event for event in read_one(trace).events if event["kind"] == "backprop"]


def test_checkpointing_is_one_backward_pass(trace: Path) -> None:
    """The forward passes that are repeated inside are seen as what they are."""
    inner = network()
    model = tl.attach(torch.nn.ModuleList([inner]), detail="layer")
    output = torch.utils.checkpoint.checkpoint(
        inner, torch.ones(1, 8, requires_grad=True), use_reentrant=True
    )
    output.sum().backward()
    tl.stop()
    del model
    recorded = read_one(trace)
    assert len(recorded.named("backprop")) == 1
    assert [e["kind"] for e in recorded.named("0.0")] == ["forward", "forward", "backprop"]


def test_a_step_that_raises_leaves_no_span(trace: Path) -> None:
    """PyTorch does not say when it ended, and what is not known is not recorded."""
    training = Training()
    tl.attach(training.model, optimizer=training.optimizer)

    def closure() -> float:
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        training.optimizer.step(closure)
    training.step()
    tl.stop()
    assert read_one(trace).one("SGD")["status"] == "closed"


def test_a_step_that_calls_its_base_is_one_update(trace: Path) -> None:
    class Ours(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    training = Training()  # its optimizer makes PyTorch put hooks into the base's step, too
    training.optimizer = Ours(training.model.parameters(), lr=0.1)
    tl.attach(training.model, optimizer=training.optimizer)
    training.step()
    training.step()
    tl.stop()
    recorded = read_one(trace)
    assert [event["step"] for event in recorded.named("Ours")] == [0, 1]
    assert {event["status"] for event in recorded.named("Ours")} == {"closed"}


@pytest.mark.usefixtures("trace")
@pytest.mark.parametrize(
    ("target", "name"),
    [
        (backward._BackwardPass, "_begin_wait"),
        (buckets, "_begin_reduction"),
        (process_groups.Flight, "_follow"),
        (modules._EndLayer, "_await_gradient"),
        (backward._BackwardPass, "finish"),
    ],
)
def test_a_failure_of_ours_warns_and_the_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, target: type, name: str
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError

    plain = Training()
    plain.step()
    plain.step()
    fail.__name__ = name
    with group_of_one():
        model = torch.nn.parallel.DistributedDataParallel(network())
        monkeypatch.setattr(target, name, fail)  # now: making the model needs collectives
        training = Training(tl.attach(model, detail="layer"))
        with pytest.warns(RuntimeWarning, match=f"{name} failed and recorded nothing") as warned:
            training.step()
        training.step()
        weights = [weight.detach().clone() for weight in training.model.parameters()]
        del training
    assert len(warned) == 1
    for left, right in zip(plain.model.parameters(), weights, strict=True):
        assert torch.equal(left, right)


def test_what_cannot_be_attached_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"'dict'.*torch\.nn\.Module"):
        tl.attach({})
    with pytest.raises(
        InvalidArgument, match="detail is 'all', expected one of step, phase, layer, op"
    ):
        tl.attach(network(), detail="all")
    with pytest.raises(InvalidArgument, match="loader is a 'list'"):
        tl.attach(network(), loader=[1])


def test_attached_says_what_is_recorded() -> None:
    tl.attach(network())
    assert hooks.attached()[-1] == "Sequential with 3 parameters"


def test_dynamo_is_told_of_our_files_once() -> None:
    """Its list of them does not grow with the models of a program."""
    rules = pytest.importorskip("torch._dynamo.trace_rules")
    tl.attach(network())
    known = len(rules.SKIP_DIRS)
    tl.attach(network())
    assert len(rules.SKIP_DIRS) == known
