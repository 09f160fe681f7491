"""What a model does on a device is timed there: forward, backprop, buckets, update; layers are not.

The device is simulated; where a real one is, `tests/gpu` does the same with it.
"""

import inspect
import re
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.device.simulated_device import SimulatedDevice
from support.imports import LateModule
from support.launch.recording import Recorded, read_one
from support.launch.torch_training import Training, group_of_one, network, torch

import tracelens as tl
from tracelens_instrument.device import timebase
from tracelens_instrument.hooks.torch import devices, process_groups

cuda: Any = LateModule("tracelens_instrument.device.cuda")

STEPS = 3


class Placed:
    """A tensor as far as its place goes."""

    def __init__(self, *, is_cuda: bool) -> None:
        self.is_cuda = is_cuda


class Ends:
    """Ends spans as `devices.QueuedEnds` does, without streams."""

    def end(self, token: Any, future: Any) -> None:
        future.wait()
        token.end()


def train_ddp(trace: Path) -> Recorded:
    """Train a DDP model for some steps."""
    with group_of_one():
        model = torch.nn.parallel.DistributedDataParallel(network())
        training = Training(tl.attach(model, detail="layer"))
        tl.attach(training.model, optimizer=training.optimizer)
        for step in range(STEPS):
            with tl.step(step):
                training.step()
        while None in [bucket["duration_ns"] for bucket in read_one(trace).named("bucket")]:
            time.sleep(0.001)  # gloo's thread wakes up the training before it calls back
        tl.stop()
        del training, model
    return read_one(trace)


class Queued:
    """A future of NCCL's, over as soon as it is queued."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("no stream")])
def test_what_is_queued_ends_whatever_happens(
    trace: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """On a stream of its own, waited for there; a captured one on the host alone."""
    monkeypatch.setattr(timebase, "find", lambda: SimulatedDevice(clock=time.monotonic_ns))
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(devices.QueuedEnds, "_stream", lambda _: None)
    ends = devices.QueuedEnds()
    ends.end(tl.span("captured", kind="reduction").begin(), Queued(RuntimeError("never asked")))
    with pytest.raises(RuntimeError) if error else nullcontext():
        ends.end(tl.span("bucket", kind="reduction", device=True).begin(), Queued(error))
    tl.stop()
    found = read_one(trace)
    status = "exception" if error else "closed"
    assert [found.one(name)["status"] for name in ("captured", "bucket")] == ["closed", status]


def timed_flags(events: list[dict[str, Any]]) -> list[bool]:
    return [event["device_start_ns"] is not None for event in events]


def test_all_of_a_model_on_a_device(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole phases have device times, layers have not, and buckets have a row of their own."""
    device = SimulatedDevice(clock=time.monotonic_ns)
    monkeypatch.setattr(timebase, "find", lambda: device)
    monkeypatch.setattr(devices, "on_device", lambda tensor: tensor is not None)
    monkeypatch.setattr(process_groups, "queues_only", lambda _group: True)
    monkeypatch.setattr(process_groups, "QueuedEnds", Ends)
    recorded = train_ddp(trace)
    assert not recorded.side.dropped
    for name in ("forward", "backprop", "bucket", "SGD"):
        assert timed_flags(recorded.named(name)) == [True] * STEPS, name
    for name in ("0", "2"):
        assert not any(timed_flags(recorded.named(name)))
    rows = {row.index: row.name for row in recorded.side.threads}
    on_device = [event for event in recorded.events if event["stream"] is not None]
    reductions = [
        event for event in on_device if event["kind"] == "reduction"
    ]  # some are DDP's own
    assert {rows[event["stream"]] for event in reductions} == {"simulated:0 reductions"}
    passes = [event for event in on_device if event not in reductions]
    assert {event["name"]: rows[event["stream"]] for event in passes} == {
        "forward": "simulated:0 stream 0",
        "backprop": "simulated:0 stream 0",
        "SGD": "simulated:0 stream 0",
    }
    order = sorted(("forward", "backprop", "SGD"), key=lambda n: recorded.named(n)[0]["start_ns"])
    begins = [recorded.named(name)[0]["device_start_ns"] for name in order]
    assert begins == sorted(begins)


def test_reductions_by_the_host_are_timed_there(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gloo does them, also for tensors on a device: the host sees when they are over."""
    device = SimulatedDevice(clock=time.monotonic_ns)
    monkeypatch.setattr(timebase, "find", lambda: device)
    monkeypatch.setattr(devices, "on_device", lambda tensor: tensor is not None)
    found = train_ddp(trace)
    assert timed_flags(found.named("backprop")) == [True] * STEPS
    assert timed_flags(found.named("bucket")) == [False] * STEPS


@pytest.mark.parametrize(
    ("backend", "queues"), [("nccl", True), ("gloo", False), ("cpu:gloo,cuda:nccl", True)]
)
def test_which_backends_only_queue(
    backend: str, monkeypatch: pytest.MonkeyPatch, *, queues: bool
) -> None:
    """By what the group says of its backends, device by device."""
    config = torch.distributed.distributed_c10d.BackendConfig(backend)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda _group: str(config))
    group: Any = None
    assert process_groups.queues_only(group) is queues


def test_a_model_on_the_host_is_not_timed_on_a_device(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process uses a device for something else."""
    device = SimulatedDevice(clock=time.monotonic_ns)
    monkeypatch.setattr(timebase, "find", lambda: device)
    found = train_ddp(trace)
    assert not any(timed_flags(found.events))
    assert device.events == []


def test_the_place_of_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor says where it is; nothing, and what is no tensor, is on no device."""
    monkeypatch.setattr("torch.Tensor", Placed)
    assert devices.on_device(Placed(is_cuda=True))
    assert not devices.on_device(Placed(is_cuda=False))
    assert not devices.on_device(None)
    assert not devices.on_device([Placed(is_cuda=True)])


def test_pytorch_has_what_the_cuda_layer_uses() -> None:
    """Also where PyTorch comes without CUDA, so that a change of theirs shows here."""
    source = Path(inspect.getfile(cuda.CudaClock)).read_text()
    used = set(re.findall(r"_CUDA\.(\w+)", source))
    assert used
    assert used <= set(dir(torch.cuda))
    assert {"record", "query", "elapsed_time"} <= set(dir(torch.cuda.Event))
    assert hasattr(torch.Stream, "stream_id")


def test_without_cuda_no_device_is_found() -> None:
    """Importing PyTorch neither finds a device nor initialises one."""
    assert torch.cuda.is_initialized() is False
    assert timebase.find() is None
    assert torch.cuda.is_initialized() is False
