"""A training job as parts that each rank executes in each step, and its simulation into rows.

A span begins when its rank is ready. A collective ends for all ranks when the last one has arrived and
its transfer is done. Times are nanoseconds.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.shapes.noise import Grid

START_NS: Final = 1_000_000_000
LAUNCH_NS: Final = 15_000  # to begin a call that runs on its own
CALL_GAP_NS: Final = 4_000  # between small calls in a row
WEIGHTS_BYTES: Final = 40_000_000
COLUMNS: Final = (
    *("rank", "host", "thread", "start_ns", "end_ns", "kind", "name", "op"),
    *("step", "seq", "bytes", "communicator", "peer", "stream"),
)


class Execution:
    """The state of a run: when each rank is ready, and the rows recorded so far."""

    def __init__(self, job: Job, *, recorded: bool) -> None:
        self.job = job
        self.recorded = recorded
        self.ready = np.zeros(job.ranks)
        self.device_free = np.zeros(job.ranks)
        self.channel_free = 0.0  # when the last call on the communication thread ends
        self.calls: Counter[str] = Counter()
        self.rows: list[dict[str, Any]] = []

    def count_call(self, communicator: str) -> int:
        """Return the number of the next call of a communicator."""
        self.calls[communicator] += 1
        return self.calls[communicator] - 1

    def record(self, rank: int, begin: float, end: float, **cells: Any) -> None:
        """Add a row of one rank, unless it has no length or only the end of the run is asked for."""
        if not self.recorded or round(end) <= round(begin):
            return
        cells |= {"rank": rank, "host": "a", "start_ns": START_NS + round(begin)}
        cells["end_ns"] = START_NS + round(end)
        if self.job.names_threads:
            cells.setdefault("thread", "main")
        if not self.job.numbers_steps:
            cells.pop("step", None)
        self.rows.append(cells)

    def record_all(self, begin: Grid, end: Grid, **cells: Any) -> None:
        """Add a row of each rank."""
        if self.recorded:
            for rank in range(self.job.ranks):
                self.record(rank, begin[rank], end[rank], **cells)


class Part(Protocol):
    """A section of the step that all ranks execute in the same order."""

    def execute(self, execution: Execution, step: int) -> None: ...


@dataclass(frozen=True)
class Work:
    """Work of each rank on its main thread. Without a kind it is code that no span covers."""

    ns: Grid
    kind: str = ""

    def execute(self, execution: Execution, step: int) -> None:
        begin_ns = execution.ready
        execution.ready = begin_ns + self.ns[:, step]
        if self.kind and execution.job.records_phases:
            execution.record_all(begin_ns, execution.ready, kind=self.kind, step=step)


@dataclass(frozen=True)
class Collective:
    """Calls in which the main thread of each rank stands until all have arrived and data has moved."""

    ns: Grid  # transfer of one call, by step (one row)
    calls: int = 1
    size: int = WEIGHTS_BYTES
    op: str = "allreduce"

    def execute(self, execution: Execution, step: int) -> None:
        for _ in range(self.calls):
            begin_ns = execution.ready
            execution.ready = np.full_like(begin_ns, begin_ns.max() + self.ns[0, step])
            cells = {"kind": "reduction", "op": self.op, "step": step, "bytes": self.size}
            seq = execution.count_call("world")
            execution.record_all(begin_ns, execution.ready, communicator="world", seq=seq, **cells)
            if self.calls > 1:
                execution.ready = execution.ready + CALL_GAP_NS


@dataclass(frozen=True)
class Launch:
    """A collective on the communication thread, in order after those launched before it."""

    ns: Grid  # transfer, by step (one row)
    size: int = WEIGHTS_BYTES // 4
    op: str = "allreduce"

    def execute(self, execution: Execution, step: int) -> None:
        begin_ns = np.maximum(execution.ready + LAUNCH_NS, execution.channel_free)
        end = begin_ns.max() + self.ns[0, step]
        execution.channel_free = end
        cells = {"kind": "reduction", "op": self.op, "step": step, "bytes": self.size}
        cells |= {"communicator": "world", "seq": execution.count_call("world")}
        execution.record_all(begin_ns, np.full_like(begin_ns, end), thread="communication", **cells)
        execution.ready = execution.ready + LAUNCH_NS


@dataclass(frozen=True)
class Join:
    """The main thread waits for all launched collectives, in a span of kind wait if `recorded`."""

    recorded: bool = True

    def execute(self, execution: Execution, step: int) -> None:
        begin_ns = execution.ready
        execution.ready = np.maximum(begin_ns, execution.channel_free)
        if self.recorded:
            execution.record_all(begin_ns, execution.ready, kind="wait", step=step)


@dataclass(frozen=True)
class RingExchange:
    """Each rank sends to the next one, and receives from the one before it."""

    ns: Grid  # transfer of what each rank sends

    def execute(self, execution: Execution, step: int) -> None:
        ranks = execution.job.ranks
        sent = execution.ready + LAUNCH_NS
        arrival = np.roll(execution.ready + self.ns[:, step], 1)
        end = np.maximum(sent, arrival)
        cells = {"step": step, "seq": step, "bytes": WEIGHTS_BYTES, "communicator": "ring"}
        for rank in range(ranks if execution.recorded else 0):
            begin, receiver, sender = execution.ready[rank], (rank + 1) % ranks, (rank - 1) % ranks
            execution.record(rank, begin, sent[rank], op="send", peer=receiver, **cells)
            execution.record(rank, sent[rank], end[rank], op="recv", peer=sender, **cells)
        execution.ready = end


@dataclass(frozen=True)
class Pipeline:
    """One stage a rank: all micro-batches go forward through the stages, then back (GPipe)."""

    forward: Grid
    backward: Grid
    transfer: Grid  # of one message from each stage, in either direction
    micro_batches: int

    def execute(self, execution: Execution, step: int) -> None:
        stages = range(execution.job.ranks)
        self.traverse(execution, step, list(stages), self.forward, "forward")
        self.traverse(execution, step, list(stages)[::-1], self.backward, "backward")

    def traverse(
        self, execution: Execution, step: int, order: list[int], work: Grid, kind: str
    ) -> None:
        """Move all micro-batches through the stages in one direction."""
        ready = execution.ready.tolist()
        arrivals = [0.0] * self.micro_batches
        for position, stage in enumerate(order):
            earlier_stage = order[position - 1] if position else None
            later_stage = order[position + 1] if position + 1 < len(order) else None
            work_ns = work[stage, step] / self.micro_batches
            clock = ready[stage]
            for micro in range(self.micro_batches):
                cells = {"step": step, "seq": step * self.micro_batches + micro}
                message = cells | {"bytes": 1_000_000, "communicator": kind}
                if earlier_stage is not None:
                    begin_ns, clock = clock, max(clock + LAUNCH_NS, arrivals[micro])
                    execution.record(
                        stage, begin_ns, clock, op="recv", peer=earlier_stage, **message
                    )
                begin_ns, clock = clock, clock + work_ns
                execution.record(stage, begin_ns, clock, kind=kind, step=step)
                if later_stage is not None:
                    arrivals[micro] = clock + self.transfer[stage, step]
                    begin_ns, clock = clock, clock + LAUNCH_NS
                    execution.record(stage, begin_ns, clock, op="send", peer=later_stage, **message)
            ready[stage] = clock
        execution.ready = np.array(ready)


@dataclass(frozen=True)
class Kernels:
    """A phase on a device: the main thread launches kernels evenly, they execute in order."""

    launch: Grid  # time of the main thread
    ns: Grid  # time of the device
    kind: str
    kernels: int = 6

    def execute(self, execution: Execution, step: int) -> None:
        begin_ns = execution.ready
        launch_ns, kernel_ns = self.launch[:, step], self.ns[:, step] / self.kernels
        for kernel in range(self.kernels):
            launched = begin_ns + launch_ns * (kernel + 1) / self.kernels
            kernel_begin = np.maximum(launched, execution.device_free)
            execution.device_free = kernel_begin + kernel_ns
            cells = {"kind": "kernel", "name": f"gemm_{self.kind}", "stream": 7}
            execution.record_all(
                kernel_begin, execution.device_free, thread="stream 7", step=step, **cells
            )
        execution.ready = begin_ns + launch_ns
        execution.record_all(begin_ns, execution.ready, kind=self.kind, step=step)


@dataclass(frozen=True)
class Synchronize:
    """The main thread waits until its device has done everything."""

    def execute(self, execution: Execution, step: int) -> None:
        begin_ns = execution.ready
        execution.ready = np.maximum(begin_ns, execution.device_free)
        cells = {"kind": "wait", "name": "cudaDeviceSynchronize", "step": step}
        execution.record_all(begin_ns, execution.ready, **cells)


@dataclass(frozen=True)
class Job:
    """Parts by name, in the order of a step, and how the job is recorded."""

    ranks: int
    steps: int
    parts: dict[str, Part] = field(default_factory=dict)
    records_phases: bool = True
    numbers_steps: bool = True
    names_threads: bool = False

    def change(self, name: str, **changes: Any) -> Job:
        """Return the job with fields of one part replaced."""
        changed: Any = replace(self.parts[name], **changes)  # type: ignore[type-var]
        return replace(self, parts=self.parts | {name: changed})

    def lengthen(self, name: str, extra_ns: Grid, grid: str = "ns") -> Job:
        """Return the job with time added to one part."""
        return self.change(name, **{grid: getattr(self.parts[name], grid) + extra_ns})

    def execute(self, *, recorded: bool) -> Execution:
        """Simulate all steps."""
        execution = Execution(self, recorded=recorded)
        for step in range(self.steps):
            for part in self.parts.values():
                part.execute(execution, step)
        return execution

    def measure_ns(self) -> float:
        """Return how long the job takes."""
        return float(self.execute(recorded=False).ready.max())

    def write_table(self, path: Path) -> None:
        """Write one row a span, as CSV, without columns that are empty."""
        rows = join_adjacent(self.execute(recorded=True).rows)
        columns = [column for column in COLUMNS if any(column in row for row in rows)]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)


def join_adjacent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the sections of a phase between which only collectives were launched.

    A program records one backward pass, however many buckets it launches within it.
    """
    joined: list[dict[str, Any]] = []
    previous: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        track = (row["rank"], row.get("thread", ""))
        earlier_row = previous.get(track)
        if (
            earlier_row is not None
            and row.get("kind") == earlier_row.get("kind") == "backward"
            and "op" not in row
            and row["start_ns"] - earlier_row["end_ns"] <= LAUNCH_NS + 1
            and row.get("step") == earlier_row.get("step")
        ):
            earlier_row["end_ns"] = row["end_ns"]
        else:
            joined.append(row)
            previous[track] = row
    return joined
