"""What Nsight Systems exported is read: its counts, its ranks, and what cannot be concluded."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest
from support.nsight import BEGIN, MS, Export, training
from support.public_traces import PUBLIC, needs

import tracelens as tl
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.readers import READERS
from tracelens.readers.base import Reading
from tracelens.readers.nsight import NsightReader

NSIGHT = PUBLIC / "nsight"
needs_files = needs("nsight")


def on_threads(trace: tl.Trace) -> pl.Expr:
    """Return a filter for the events of threads, without those of device streams."""
    named = trace.threads.filter(pl.col("name").str.starts_with("thread"))
    return pl.col("thread").is_in(named["thread"].to_list())


def reader_chosen(path: Path) -> str:
    return next(reader.name for reader in READERS if reader.sniff(path))


@needs_files
def test_the_clover_trace_has_the_counts_of_nsights_own_reader() -> None:
    """The counts of the format's own reader: kernels, their time, and copies."""
    trace = NsightReader().read(NSIGHT / "clover.sqlite", Reading(rank_of={"clover.sqlite": 0}))
    events = trace.events.collect()
    name = pl.col("name").cast(pl.String)
    kernels = events.filter(~name.str.starts_with("memcpy"))
    assert kernels.height == 1312
    assert (kernels["end_ns"] - kernels["start_ns"]).sum() == 294_404_540
    assert events.filter(name.str.starts_with("memcpy")).height == 279
    assert trace.processes["host"].to_list() == ["nid008553"]


@needs_files
def test_clover_says_no_rank() -> None:
    """It is rank 0 of an unknown world, which is said."""
    trace = tl.open(NSIGHT / "clover.sqlite")
    assert trace.processes["rank"].to_list() == [0]
    (note,) = [note for note in trace.notes if note.kind == "assumed"]
    assert "--rank-of clover.sqlite=RANK says another" in note.sentence


@needs_files
def test_the_saxpy_trace_has_its_rank_and_ranges() -> None:
    """Its rank is in it; of 24 records of NVTX, 22 are ranges and two name the domain and the thread."""
    trace = NsightReader().read(NSIGHT / "saxpy.sqlite")
    events = trace.events.collect()
    code, lasted = on_threads(trace), pl.col("end_ns") - pl.col("start_ns")
    kernels = events.filter(~code, pl.col("name") == "saxpy", lasted > 10 * MS)
    assert (kernels.height, (kernels["end_ns"] - kernels["start_ns"]).sum()) == (5, 88_573_480)
    ranges = events.filter(code)
    assert trace.recognition
    assert ranges.height + dict(trace.recognition.left_out)["names and marks of NVTX"] == 24
    assert trace.processes["rank"].to_list() == [0]
    ops = ranges["op"].cast(pl.String).value_counts().drop_nulls().rows()
    assert dict(ops) == {"send": 10, "recv": 5}
    assert reader_chosen(NSIGHT / "saxpy.sqlite") == NsightReader().name


@needs_files
def test_the_device_decides_where_the_host_is_not_known() -> None:
    """Half of the time has no range, and the device is idle in it."""
    report = tl.analyze(tl.open(NSIGHT / "saxpy.sqlite"))
    assert report.verdict.headline == (
        "BOUND BY devices that wait for the host to queue work: 50 % of the time"
    )
    assert "how steps differ" in report.verdict.scope


def training_without_rank(rank: int) -> Export:
    """Return a training whose file does not say its rank; its process is 100 and the rank."""
    export = training(rank)
    export.rank = None
    return export


def two_processes(tmp_path: Path, *, devices: tuple[int, int]) -> Path:
    """Write one file with the kernels of two processes of torchrun."""
    first, second = (training_without_rank(rank) for rank in (0, 1))
    file = first.write(tmp_path / "both.sqlite")
    other_file = second.write(tmp_path / "other")
    with sqlite3.connect(file) as database:
        database.execute("attach ? as other", (str(other_file),))
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            database.execute(f"insert into {table} select * from other.{table}")  # noqa: S608 - names are ours
        for pid, device in zip((100, 101), devices, strict=True):
            database.execute(
                "update CUPTI_ACTIVITY_KIND_KERNEL set deviceId = ? where globalPid = ?",
                (device, pid << 24),
            )
    other_file.unlink()
    return file


def test_processes_of_one_file_are_the_ranks_of_their_devices(tmp_path: Path) -> None:
    trace = tl.open(two_processes(tmp_path, devices=(1, 0)))
    assert trace.processes.select("pid", "rank").sort("pid").rows() == [(100, 1), (101, 0)]
    (note,) = [note for note in trace.notes if note.kind == "assumed"]
    assert "each is the rank with the number of its device" in note.sentence


def test_processes_of_one_device_are_asked_for_one_by_one(tmp_path: Path) -> None:
    file = two_processes(tmp_path, devices=(0, 0))
    with pytest.raises(UnusableInput, match=r"--rank-of both\.sqlite:100=0, once for each"):
        tl.open(file)
    trace = tl.open(file, rank_of={"both.sqlite:100": 3, "both.sqlite:101": 2})
    assert trace.processes.select("pid", "rank").sort("pid").rows() == [(100, 3), (101, 2)]


def test_a_launcher_s_variable_says_the_rank(tmp_path: Path) -> None:
    file = training_without_rank(0).write(tmp_path / "one.sqlite")
    with sqlite3.connect(file) as database:
        database.execute("insert into TARGET_INFO_SYSTEM_ENV values ('RANK', '5')")
    assert tl.open(file).processes["rank"].to_list() == [5]


def write_exports(folder: Path, slow: int | None) -> Path:
    for rank in range(4):
        export = training(rank, slow=1.4 if rank == slow else 1.0)
        export.write(folder / f"rank{rank}.sqlite")
    return folder


def test_a_folder_of_ranks_names_the_slow_one(tmp_path: Path) -> None:
    """Its device computes longer; the others wait for it in NCCL's kernels."""
    assert reader_chosen(write_exports(tmp_path, 2)) == NsightReader().name
    trace = tl.open(tmp_path)
    assert trace.workers["rank"].to_list() == [0, 1, 2, 3]
    assert trace.steps["step"].n_unique() == 40
    report = tl.analyze(trace)
    (fault,) = [finding for finding in report.findings if finding.category == "fault"]
    assert (fault.kind, fault.ranks, fault.phase) == ("straggler", (2,), "backprop")


def test_without_a_slow_rank_there_is_no_fault(tmp_path: Path) -> None:
    report = tl.analyze(tl.open(write_exports(tmp_path, None)))
    assert [finding for finding in report.findings if finding.category == "fault"] == []


def test_kernels_are_of_the_phase_that_launched_them(tmp_path: Path) -> None:
    trace = NsightReader().read(training(0).write(tmp_path / "a.sqlite"))
    on_stream = trace.events.collect().filter(~on_threads(trace))
    kinds = on_stream.select(pl.col("name", "kind").cast(pl.String)).unique().rows()
    assert dict(kinds) == {
        "sm80_gemm": "forward",
        "sm80_gemm_back": "backprop",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "reduction",
    }


def test_tables_of_mpi_are_calls(tmp_path: Path) -> None:
    """With sizes and peers; times are those of the day."""
    export = Export(
        rank=3,
        ranges=[(0, 10 * MS, "step 0")],
        collectives=[(MS, 2 * MS, "MPI_Allreduce", 4096)],
        messages=[(3 * MS, 4 * MS, "MPI_Send", 1, 64)],
    )
    events = NsightReader().read(export.write(tmp_path / "a.sqlite")).events.collect()
    rows = events.sort("start_ns").select(
        pl.col("kind", "op").cast(pl.String), "bytes", "peer", "start_ns"
    )
    assert rows.drop("start_ns").rows() == [
        ("step", None, None, None),
        ("reduction", "allreduce", 4096, None),
        ("reduction", "send", 64, 1),
    ]
    assert rows["start_ns"][0] == BEGIN
    assert events["rank"].unique().to_list() == [3]


def test_rows_without_times_are_counted(tmp_path: Path) -> None:
    export = training(0, steps=3)
    export.ranges.append((5 * MS, None, "unfinished"))  # type: ignore[arg-type]  # as a range that never ended
    trace = NsightReader().read(export.write(tmp_path / "a.sqlite"))
    assert any("1 row without a begin or an end" in note.sentence for note in trace.notes)


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name, steps in (("a", 3), ("b", 4)):
        training(1, steps=steps).write(tmp_path / f"{name}.sqlite")
    with pytest.raises(UnusableInput, match=r"'a\.sqlite' and 'b\.sqlite' both hold rank 1"):
        NsightReader().read(tmp_path)


def test_an_empty_profile_says_what_to_trace(tmp_path: Path) -> None:
    with pytest.raises(EmptyTrace, match="--trace=cuda,nvtx,mpi"):
        NsightReader().read(Export().write(tmp_path / "a.sqlite"))


def test_another_database_is_not_taken(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "a.sqlite") as connection:
        connection.execute("create table songs (title text)")
    connection.close()
    assert not NsightReader().sniff(tmp_path / "a.sqlite")
    with pytest.raises(NotATrace):
        tl.open(tmp_path / "a.sqlite")
