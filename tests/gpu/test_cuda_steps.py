"""Real steps on a real device: timed where they ran, on the host's clock, without a synchronisation."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.device.gpu import Part, gpu, overlap_ns, read, torch

import tracelens as tl
from tracelens_instrument.device.timebase import ANCHOR_EVERY_NS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = gpu

STEPS = 20
BUCKETS = 4
SIZE = 4096
FORWARD = tl.span("forward", kind="forward", device=True)
BACKPROP = tl.span("backprop", kind="backprop", device=True)
REDUCE = tl.span("reduce", kind="reduction", op="allreduce", device=True)


class Step:
    """A data-parallel step: compute on one stream, buckets on another."""

    def __init__(self) -> None:
        self.weights = torch.randn(SIZE, SIZE, device="cuda")
        self.activations = torch.randn(SIZE, SIZE, device="cuda")
        self.buckets = [torch.randn(1 << 24, device="cuda") for _ in range(BUCKETS)]
        self.others = [torch.empty_like(bucket) for bucket in self.buckets]
        self.communication = torch.cuda.Stream()

    def __call__(self) -> None:
        with FORWARD:
            torch.mm(self.activations, self.weights)
        with BACKPROP:
            for number in range(BUCKETS):
                torch.mm(self.activations, self.weights)
                self.reduce(number)
        torch.cuda.current_stream().wait_stream(self.communication)

    def reduce(self, number: int) -> None:
        """Copy a bucket to and fro during the computation, as a reduction would."""
        self.communication.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.communication), REDUCE(bucket=number):
            for _ in range(4):
                self.others[number].copy_(self.buckets[number], non_blocking=True)
                self.buckets[number].copy_(self.others[number], non_blocking=True)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Let PyTorch raise wherever it would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def read_finished(trace: Path) -> Part:
    torch.cuda.synchronize()
    tl.stop()
    (recorded,) = read(trace)
    return recorded


@pytest.fixture(name="step")
def warm_step() -> Step:
    """A step whose kernels are loaded."""
    step = Step()
    step()
    torch.cuda.synchronize()
    return step


def test_every_span_is_timed_and_no_step_waits(trace: Path, step: Step) -> None:
    """All spans have device times; each is longer on the device than on the host, which only queued."""
    with no_synchronisation():
        for number in range(STEPS):
            with tl.step(number):
                step()
    recorded = read_finished(trace)
    step_events = [
        event for event in recorded.events if event["step"] >= 0 and event["kind"] != "step"
    ]
    assert len(step_events) == STEPS * (2 + BUCKETS)
    assert all(event["device_start_ns"] is not None for event in step_events)
    assert not recorded.side["dropped"]
    last_backprop = recorded.named("backprop")[-1]
    assert last_backprop["device_start_ns"] > last_backprop["start_ns"]


def test_device_spans_lie_in_their_step(trace: Path, step: Step) -> None:
    """Where a step ends with waiting for the device, all that it queued lies within it."""
    for number in range(STEPS):
        with tl.step(number):
            step()
            torch.cuda.synchronize()
    recorded = read_finished(trace)
    steps = {event["step"]: event for event in recorded.events if event["kind"] == "step"}
    for event in recorded.timed:
        if event["step"] < 0:
            continue
        around = steps[event["step"]]
        placed = recorded.on_host(event)
        sure = placed.uncertainty_ns + 1_000
        assert placed.start_ns >= event["start_ns"] - sure
        assert placed.end_ns <= around["start_ns"] + around["duration_ns"] + sure


def between_waits(trace: Path) -> tuple[Part, list[tuple[int, int]]]:
    """Record work between two waits of the host, for some anchors long; also return the waits."""
    work = torch.zeros(8, device="cuda")
    bounds_ns: list[tuple[int, int]] = []
    until = time.monotonic_ns() + 2 * ANCHOR_EVERY_NS + ANCHOR_EVERY_NS // 2
    number = 0
    while time.monotonic_ns() < until:
        torch.cuda.synchronize()
        begin_ns = time.monotonic_ns()
        with tl.step(number):
            with FORWARD:
                work += 1
            torch.cuda.synchronize()
        bounds_ns.append((begin_ns, time.monotonic_ns()))
        number += 1
        time.sleep(0.02)
    return read_finished(trace), bounds_ns


def test_the_nearest_anchor_holds(trace: Path) -> None:
    """The work ran between the waits, at any distance from an anchor."""
    recorded, bounds_ns = between_waits(trace)
    assert len(recorded.readings) >= 3
    for event, (since_ns, until_ns) in zip(recorded.named("forward"), bounds_ns, strict=True):
        placed = recorded.on_host(event)
        assert placed.start_ns >= since_ns - placed.uncertainty_ns - 1_000
        assert placed.end_ns <= until_ns + placed.uncertainty_ns + 1_000


def test_the_analyzers_map_holds(trace: Path) -> None:
    """All anchors together say it within tens of microseconds, and are right."""
    pytest.importorskip("polars", reason="the analyzer is not installed here")
    _, bounds_ns = between_waits(trace)
    read_back = tl.open(trace)
    (clock,) = read_back.device_clocks.to_dicts()
    assert clock["uncertainty_ns"] < 100_000
    sure = clock["uncertainty_ns"] + 1_000
    spans = read_back.spans.filter(kind="forward").sort("step").collect()
    begins, lengths = spans["device_start_ns"].to_list(), spans["device_duration_ns"].to_list()
    for begin_ns, length, (since_ns, until_ns) in zip(begins, lengths, bounds_ns, strict=True):
        assert begin_ns >= since_ns - sure
        assert begin_ns + length <= until_ns + sure


def test_copies_beside_computing_are_seen_to_overlap(trace: Path, step: Step) -> None:
    """The communication stream runs during backprop, which the host's spans cannot show."""
    for number in range(STEPS):
        with tl.step(number):
            step()
    recorded = read_finished(trace)
    timed = [event for event in recorded.timed if event["step"] >= 0]
    placed_by_name = {
        name: [recorded.on_host(event) for event in timed if event["name"] == name]
        for name in ("backprop", "reduce")
    }
    reduced = sum(placed.end_ns - placed.start_ns for placed in placed_by_name["reduce"])
    assert overlap_ns(placed_by_name["backprop"], placed_by_name["reduce"]) > 0.3 * reduced
    rows = {row["index"]: row["name"] for row in recorded.side["threads"]}
    assert len({rows[event["stream"]] for event in timed}) == 2


def test_a_model_in_ddp_is_timed(trace: Path) -> None:
    """The hooks time the whole passes, the update and, with NCCL, the buckets."""
    dist: Any = torch.distributed
    backend = "nccl" if dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=4
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        tl.attach(model, optimizer=optimizer)
        inputs = torch.randn(1024, 1024, device="cuda")
        for number in range(5):
            with tl.step(number):
                model(inputs).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        recorded = read_finished(trace)
        del model, optimizer
    finally:
        dist.destroy_process_group()
    names = ["forward", "backprop", "SGD", *(["bucket"] if backend == "nccl" else [])]
    for name in names:
        assert recorded.named(name), name
        assert all(event["device_start_ns"] is not None for event in recorded.named(name)), name


def test_a_graph_is_captured_and_replayed_inside_spans(trace: Path) -> None:
    """Spans inside a capture are host spans; around a replay they are timed."""
    values = torch.zeros(8, device="cuda")
    values += 1
    torch.cuda.synchronize()
    with FORWARD:
        values += 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), FORWARD(micro_step=1):
        values += 1
    with tl.step(0), FORWARD(micro_step=2):
        graph.replay()
    part = read_finished(trace)
    found = {event["micro_step"]: event for event in part.named("forward")}
    assert found[1]["device_start_ns"] is None
    assert found[2]["device_start_ns"] is not None
    assert values.tolist() == [3.0] * 8
