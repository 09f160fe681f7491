"""Kineto traces (what `torch.profiler` exports), as input of others: simulated, or copies of a real one.

A simulated rank has, of each span, an operator on the thread that ran it; where a device did the work,
the call that launched it, the kernel on a stream, and the flow arrows between both, as in traces of GPU
trainings; and about as many rows a kernel as those have.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.simulator.synthetic import Scenario, generate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["copy_ranks", "load", "simulate"]

STREAMS: Final = {
    2: 7,
    3: 14,
}  # rows of the simulator's thread table, and numbers as CUDA gives them
NCCL: Final = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
FIRST_PID: Final = 1000
_ANNOTATED: Final = {"step": "ProfilerStep#{step}", "update": "Optimizer.step#SGD.step"}
_MICROSECOND: Final = 1e-3  # of a nanosecond

Event = dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    """Read a trace, compressed or not."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        read: dict[str, Any] = json.load(file)
    return read


def simulate(ranks: int, steps: int, micro_steps: int, folder: Path) -> None:
    """Write a file a rank of a simulated training on GPUs.

    A step of the profiler is several of the simulator: real traces have thousands of kernels a step, and
    HTA's time grows with kernels x steps (136 s of CPU for 2 ranks x 2,300 steps, 10 for as many rows of
    a real training).
    """
    scenario = Scenario(
        ranks=ranks, steps=steps * micro_steps, layers=7, buckets=6, transfer_ms=0.3, on_device=True
    )
    events = generate(scenario).events.filter(type="span").collect()
    for rank in range(ranks):
        rows = _in_steps(events.filter(pl.col("process") == rank), micro_steps)
        listed = [event for row in rows.iter_rows(named=True) for event in _events(row)]
        _write(folder, rank, ranks, listed)


def _in_steps(rows: pl.DataFrame, micro_steps: int) -> pl.DataFrame:
    """Join a rank's steps, so many at a time."""
    numbered = rows.with_columns(pl.col("step") // micro_steps)
    of_step = pl.col("kind") == "step"
    joined = numbered.filter(of_step).with_columns(
        pl.col("start_ns").min().over("step"), pl.col("end_ns").max().over("step")
    )
    return pl.concat([numbered.filter(~of_step), joined.unique("step", keep="first")])


def copy_ranks(sample: Path, ranks: int, folder: Path) -> None:
    """Write a rank's trace as those of several ranks."""
    events = load(sample)["traceEvents"]
    for rank in range(ranks):
        _write(folder, rank, ranks, events)


def _write(folder: Path, rank: int, ranks: int, events: list[Event]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    known = {"backend": "nccl", "rank": rank, "world_size": ranks}
    trace = {"schemaVersion": 1, "distributedInfo": known, "traceEvents": events}
    # HTA looks for `"rank": 1` with the blank, and takes rank 0 without.
    with gzip.open(folder / f"rank{rank}.json.gz", "wt", compresslevel=1) as file:
        json.dump(trace, file)


def _events(row: dict[str, Any]) -> Iterator[Event]:
    """Yield what a profiler writes of a span."""
    pid = FIRST_PID + row["rank"]
    tid = pid + (row["kind"] == "backprop")  # autograd has a thread of its own
    name = _ANNOTATED.get(row["kind"], row["name"]).format(**row)
    category = "user_annotation" if row["kind"] in _ANNOTATED else "cpu_op"
    host = _complete(category, name, row, "", (pid, tid))
    yield host
    if row["device_start_ns"] is None:
        return
    correlation = host["args"]["External id"] = _number(row)
    args: Event = {"External id": correlation, "correlation": correlation}
    launch = _complete("cuda_runtime", "cudaLaunchKernel", row, "", (pid, tid))
    kernel_name = (
        NCCL if row["kind"] == "reduction" else f"{row['kind']}_kernel<float>({row['name']})"
    )
    stream = STREAMS[row["stream"]]
    kernel = _complete("kernel", kernel_name, row, "device_", (0, stream))
    launch["args"] |= args | {"cbid": 211}
    kernel["args"] |= args | {"device": 0, "context": 1, "stream": stream}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
    yield launch
    yield kernel
    yield {"ph": "s", "pid": pid, "tid": tid, "ts": launch["ts"], **arrow}
    yield {"ph": "f", "pid": 0, "tid": stream, "ts": kernel["ts"], "bp": "e", **arrow}


def _number(row: dict[str, Any]) -> int:
    """Return a number for a launch that no other of its rank has: no two begin at once on a stream."""
    return int(row["device_start_ns"]) * 10 + int(row["stream"])


def _complete(
    category: str, name: str, row: dict[str, Any], clock: str, place: tuple[int, int]
) -> Event:
    """Return a span in microseconds, of the host or the device."""
    begin = row[f"{clock}start_ns"]
    length = row["device_duration_ns"] if clock else row["end_ns"] - begin
    times = {"ts": begin * _MICROSECOND, "dur": length * _MICROSECOND}
    where = {"pid": place[0], "tid": place[1]}
    return {"ph": "X", "cat": category, "name": name, **where, **times, "args": {}}
