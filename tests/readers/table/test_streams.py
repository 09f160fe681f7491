"""Kernels on streams are the work of their rank; a thread that waits for its device is idle."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracelens
from tracelens import Trace
from tracelens.accounting import phases

# Named as PyTorch's profiler names them: category, name, stream, begin and length in microseconds.
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
KERNELS = [
    ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 0, 10),
    ("kernel", "ampere_sgemm_128x64_tn", 7, 10, 30),
    ("kernel", "void at::native::reduce_kernel<512, 1>(float)", 7, 45, 25),
    ("kernel", ALLREDUCE, 40, 60, 30),
    ("gpu_memset", "Memset (Device)", 7, 95, 5),
]
WORK_NS, TRANSFER_NS, LENGTH_NS = 70_000, 20_000, 100_000


def kernels(rank: int = 0, late: int = 0) -> list[dict[str, Any]]:
    """Write one step of a rank, whose second kernel takes longer by `late` microseconds."""
    rows = []
    for number, (category, name, stream, start, length) in enumerate(KERNELS):
        begin_us = start + (late if number > 2 else 0)
        lasted_us = length + (late if number == 2 else 0)
        row = {"cat": category, "name": name, "tid": stream, "stream": stream}
        rows.append({"rank": rank, "host": "a", "ts_us": begin_us, "dur_us": lasted_us, **row})
    return rows


def table(*rows: dict[str, Any], without: tuple[str, ...] = ()) -> pl.DataFrame:
    return pl.DataFrame(rows).drop(without)


def ns_by_category(trace: Trace) -> dict[str, int]:
    """Return nanoseconds by category."""
    times = phases.run(trace).times
    totals = times.group_by(pl.col("category").cast(pl.String)).agg(pl.col("ns").sum())
    return dict(totals.iter_rows())


@pytest.mark.parametrize("without", [(), ("stream",), ("tid",), ("tid", "stream")], ids=str)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_kernels_of_a_table_are_compute_or_communication(
    tmp_path: Path, suffix: str, without: tuple[str, ...]
) -> None:
    """Kernels are compute time, and communication while no other kernel runs; any names of streams."""
    frame, path = table(*kernels(), without=without), tmp_path / f"kernels{suffix}"
    if suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    assert ns_by_category(tracelens.open(path)) == {
        "user": WORK_NS,
        "transfer": TRANSFER_NS,
        "uninstrumented": LENGTH_NS - WORK_NS - TRANSFER_NS,
    }


def test_kernels_that_reduce_meet() -> None:
    """Who comes late to a collective makes the others' kernels spin, and that is waiting."""
    trace = Trace.from_table(table(*kernels(0), *kernels(1, late=12)))
    assert trace.arrivals.select("rank", "wait_ns", "op").rows() == [
        (0, 12_000, "allreduce"),
        (1, 0, "allreduce"),
    ]


def test_kernels_beside_the_threads() -> None:
    """A rank's thread is the one with its phases; a stream is a track of its own."""
    thread = {"rank": 0, "host": "a", "tid": 1}
    host = [
        {**thread, "ts_us": 0, "dur_us": 20, "cat": "forward", "name": "forward"},
        {**thread, "ts_us": 20, "dur_us": 80, "cat": "backward", "name": "backward"},
    ]
    noted = {**host[0], "tid": 7, "cat": "gpu_user_annotation", "name": "mine"}
    trace = Trace.from_table(table(*host, *kernels(), noted, without=("stream",)))
    beside = dict(trace.threads.select("name", "in_flight").iter_rows())
    assert beside == {"1": False, "7": False, "stream 7": True, "40": True}
    own = trace.threads.join(trace.workers, left_on="thread", right_on="training_thread")
    assert own["name"].to_list() == ["1"]
    spent_ns = ns_by_category(trace)
    assert spent_ns["user"] == WORK_NS
    assert set(spent_ns) <= {"user", "forward", "backprop", "transfer"}
    assert sum(spent_ns.values()) == LENGTH_NS


def test_a_thread_that_waits_for_its_device() -> None:
    """It is idle: among phases of training a row of this kind is no kernel."""
    rows = [
        {"rank": 0, "thread": 0, "start_us": 0, "end_us": 30, "kind": "forward"},
        {"rank": 0, "thread": 0, "start_us": 30, "end_us": 100, "kind": "device"},
    ]
    assert ns_by_category(Trace.from_table(table(*rows))) == {"forward": 30_000, "idle": 70_000}


def test_device_times_are_left_as_given() -> None:
    """Where a row says when a device did its work, its own times are those of the thread."""
    device_times = {"device_start_ns": 5_000, "device_duration_ns": 20_000, "stream": 3}
    row = {"rank": 0, "thread": 0, "start_us": 0, "end_us": 30, "kind": "forward", **device_times}
    (event,) = Trace.from_table(table(row)).events.collect().rows(named=True)
    assert (event["start_ns"], event["thread"]) == (0, 0)
    assert {name: event[name] for name in device_times} == device_times


def test_an_open_kernel_has_no_device_times() -> None:
    """A rank that was cut off within a kernel: how long it ran is unknown."""
    rows = kernels()
    rows[1]["dur_us"] = None
    events = Trace.from_table(table(*rows)).events.collect().filter(pl.col("end_ns").is_null())
    assert events.select("device_start_ns", "device_duration_ns").rows() == [(None, None)]


@pytest.mark.parametrize(
    ("name", "kind", "op"),
    [
        (ALLREDUCE, "reduction", "allreduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "reduction", "allreduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduction", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "reduction", "all_gather"),
        ("rcclKernel_Broadcast_RING_SIMPLE", "reduction", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "reduction", None),
        ("reduce_5", "device", None),
        ("broadcast", "device", None),
        ("void at::native::reduce_kernel<512, 1>(float)", "device", None),
    ],
)
def test_which_kernels_communicate(name: str, kind: str, op: str | None) -> None:
    """Those of the communication libraries; a compiler's kernel that sums up is called reduce, too."""
    row = {"rank": 0, "stream": 1, "start_us": 0, "end_us": 1, "cat": "kernel", "name": name}
    events = Trace.from_table(table(row)).events.collect()
    assert events.select("kind", "op").rows() == [(kind, op)]
