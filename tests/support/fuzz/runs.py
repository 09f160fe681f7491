"""The runs in which a file is damaged, and the sound files that damage is done to.

Run: PYTHONPATH=.:tests python -m support.fuzz.runs, to write the bases in tests/data/fuzz anew.
"""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
from support import (
    horovod_timeline,
    inspector_files,
    otlp_files,
    perfetto_files,
    rocprof_files,
    stack_files,
    viztracer_file,
    xplane_files,
)
from support.fuzz.arrow import table_of
from support.fuzz.subjects import CORPUS, LIVE, SUBJECTS, VICTIM, bases
from support.nsight import training
from support.runs.damage import checked_file
from support.runs.segments import Slot, write_folder
from support.runs.tables import table_of as spans_of

from tracelens import load
from tracelens.conversion.arrow_file import GrowingFile
from tracelens.conversion.folder import PROGRESS_FILE, Progress, save_progress
from tracelens.conversion.segments import decode
from tracelens.exports import EXPORTS
from tracelens.exports.content import select_content
from tracelens.schema.arrow import SAMPLE_SCHEMA
from tracelens.schema.host import host_name
from tracelens.schema.ownership import mark
from tracelens.schema.side import Communicator, Definition, Process, format_line
from tracelens.schema.vocabulary import SIDE_FILE, UNFINISHED_FILE
from tracelens.simulator.synthetic import Scenario, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fuzz.subjects import Subject

__all__ = ["AROUND", "filled_in", "put", "write_other_files"]

RUN: Final = Scenario(ranks=3, steps=4)
TESTS: Final = Path(__file__).parents[2]
KINETO: Final = TESTS / "data/kineto/two_ranks/rank0.pt.trace.json.gz"
HOST: Final = b"@host@"
PLACE: Final = b"@place@"  # of the segments that a note names
_EVENTS: Final = 60
_MS: Final = 1_000_000
_STEPS: Final = 4
_PAGE: Final = 512  # bytes, so that a database has few


def filled_in(data: bytes, segments: Path) -> bytes:
    """Put in what differs from machine to machine."""
    return data.replace(HOST, host_name().encode()).replace(PLACE, str(segments).encode())


def put(subject: Subject, run: Path, data: bytes) -> Path:
    """Lay a file into a run, and anew whatever reading it may convert; return what to open of it."""
    if subject.is_live:
        _lay_segments(subject, run)
    file = run / subject.file_of(data)
    for other in (run / subject.file, run / f"{subject.file}.gz"):
        other.unlink(missing_ok=True)
    segments = run.parent / "elsewhere" / LIVE
    file.write_bytes(filled_in(data, segments))
    return run / subject.alone_of(data)


def _lay_segments(subject: Subject, run: Path) -> None:
    """Write a dead process's segments as its recorder left them, with the proof that they are ours."""
    (run / f"{VICTIM}.arrow").unlink(missing_ok=True)
    elsewhere = subject.name == "note"
    folder = (run.parent / "elsewhere" if elsewhere else run) / LIVE
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark(folder, run)
    for name, file in (("segment", "000000.seg"), ("side", SIDE_FILE)):
        (folder / file).write_bytes(filled_in(_first_base(name), folder))
    if subject.around == "half converted":
        content = _first_base("growing")
        (folder / UNFINISHED_FILE).write_bytes(content)
        save_progress(folder, Progress(length=len(content), next=0))


def _first_base(name: str) -> bytes:
    return bases(SUBJECTS[name])[0]


def _recording(run: Path) -> None:
    write(RUN, run)


def _sampled(run: Path) -> None:
    _recording(run)
    (run / SUBJECTS["samples"].file).parent.mkdir()


def _kineto(run: Path) -> None:
    shutil.copyfile(TESTS / "data/kineto/two_ranks/rank1.pt.trace.json.gz", run / "rank0.json.gz")


def _nsight(run: Path) -> None:
    for rank in (0, 2):
        training(rank, steps=_STEPS).write(run / f"rank{rank}.sqlite")


def _flight_recorder(run: Path) -> None:
    (run / "trace_rank_0").write_bytes(pickle.dumps(_dump()))


def _otf2(run: Path) -> None:
    from support import otf2_archives as otf2  # noqa: PLC0415 - it needs an extra

    otf2.write(run, otf2.training(2, _STEPS, slow=1))


AROUND: Final[dict[str, Callable[[Path], None]]] = {
    "recording": _sampled,
    "half converted": _recording,
    "nothing": lambda _run: None,
    "kineto": _kineto,
    "nsight": _nsight,
    "flight_recorder": _flight_recorder,
    "otf2": _otf2,
}


def write_other_files(subject: Subject, run: Path) -> list[Path]:
    """Write the other files of a run; return them."""
    run.mkdir()
    AROUND[subject.around](run)
    if subject.is_live:
        (run / f"{VICTIM}.arrow").unlink()
    own = {run / subject.file, run / f"{subject.file}.gz"}
    return sorted(path for path in run.rglob("*") if path.is_file() and path not in own)


def _dump() -> dict[str, Any]:
    """Return what PyTorch's Flight Recorder would dump of a hanging rank."""
    begin_ns = 1_795_000_000_000_000_000
    entries = [
        {
            "frames": [{"name": "train", "filename": "/home/me/train.py", "line": 12}],
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq,
            "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": begin_ns + seq * 10 * _MS,
            "time_discovered_started_ns": begin_ns + seq * 10 * _MS + 1000,
            "time_discovered_completed_ns": begin_ns + seq * 10 * _MS + 5 * _MS
            if seq < 5
            else None,
            "input_sizes": [[1024]],
            "input_dtypes": ["Float"],
            "state": "completed" if seq < 5 else "started",
            "retired": seq < 5,
            "is_p2p": False,
        }
        for seq in range(6)
    ]
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    return {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": entries}


def _io_lines() -> bytes:
    """Return what DFTracer writes of a process that loads data; some numbers are text."""
    begin_us = 1_795_000_000_000_000
    host = {"hhash": "f9ff", "name": "node0", "value": "f9ff"}
    lines: list[dict[str, Any]] = [
        {"id": 1, "name": "HH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": "M", "args": host}
    ]
    for number in range(_EVENTS // 3):
        at_us = begin_us + number * 1000
        loaded = {"hhash": "f9ff", "epoch": 1, "step": number // 4}
        read = {"hostname": "node0", "ret": "4096", "count": "4096", "fname": "/data/a.npz"}
        for name, sort, args, start_us, length in (
            ("Reader.next", "data_loader", loaded, at_us, 400),
            ("read", "POSIX", read, str(at_us + 10), "300"),
            ("Model.forward", "ai_framework", {"hhash": "f9ff"}, at_us + 400, 500),
        ):
            place = {"pid": 7, "tid": 7 + number % 2, "ts": start_us, "dur": length}
            event = {"id": len(lines), "name": name, "cat": sort, **place, "ph": "X", "args": args}
            lines.append(event)
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def _segments(folder: Path) -> Path:
    """Write what a killed rank of the run would have left."""
    definitions = (
        Definition(1, "step", "step"),
        Definition(2, "forward", "forward"),
        Definition(3, "backprop", "backprop"),
        Definition(4, "allreduce", "reduction", op="allreduce", communicator=0),
        Definition(5, "loss", "user", type="counter"),
        Definition(6, "here", "user", type="instant"),
    )
    slots = []
    for step in range(_STEPS):
        at_ns = step * 40 * _MS
        slots += [
            Slot(at_ns, at_ns + 39 * _MS, step=step, definition=1),
            Slot(at_ns + 1, at_ns + 10 * _MS, step=step, definition=2, queue_depth=3),
            Slot(
                at_ns + 10 * _MS, at_ns + 30 * _MS, step=step, definition=3, bucket=1, micro_step=0
            ),
            Slot(
                at_ns + 30 * _MS, at_ns + 38 * _MS, nbytes=4096, seq=step, step=step, definition=4
            ),
            Slot(at_ns + 38 * _MS, 0, nbytes=step, step=step, definition=5),
            Slot(at_ns + 38 * _MS, at_ns + 38 * _MS, step=step, definition=6, peer=2, key=1),
        ]
    slots.append(Slot(_STEPS * 40 * _MS, 0, step=_STEPS, definition=2))
    process = Process(rank=1, world=3, pid=1001, host=HOST.decode(), incarnation=1)
    segments = write_folder(folder, slots, definitions=definitions, process=process, end=False)
    world = Communicator(0, "world-uid", "world", [0, 1, 2])
    with (segments / SIDE_FILE).open("ab") as side:
        side.write(format_line("communicators", world))
    return segments


def _growing(place: Path) -> bytes:
    """Return what of these segments would have become Arrow."""
    table, side = decode(place)
    path = place / UNFINISHED_FILE
    with GrowingFile(path, replace(side, complete=False)) as file:
        for batch in table.combine_chunks().to_batches(max_chunksize=10):
            file.append_batch(batch)
    return path.read_bytes()


def _write_bases() -> dict[str, list[bytes]]:
    """Return the bases of each subject."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(RUN, folder / "run")
        recorded = (folder / "run" / f"{VICTIM}.arrow").read_bytes()
        shards = Scenario(ranks=2, shards=1, steps=2)
        write(shards, folder / "shards")
        server = next((folder / "shards").glob("ps-*.arrow")).read_bytes()
        killed = TESTS / "data/schema_1/mpi-killed-rank/worker-00001-29751.arrow"
        sampled = TESTS / "data/schema_1/mpi-sampled/samples/worker-00000-9844.arrow"
        folder_of_run = _segments(folder)
        segment, side = (
            (folder_of_run / "000000.seg").read_bytes(),
            (folder_of_run / SIDE_FILE).read_bytes(),
        )
        segments = (folder_of_run / SIDE_FILE).read_bytes()
        (folder_of_run / SIDE_FILE).write_bytes(segments.replace(HOST, b"node0"))
        growing = _growing(folder_of_run)
        save_progress(folder_of_run, Progress(len(growing), 0, lost={"budget": 1}, sorted=False))
        progress = (folder_of_run / PROGRESS_FILE).read_bytes()
        spans = spans_of(load.open(folder / "run"))
        feather, parquet = folder / "a.arrow", folder / "a.parquet"
        spans.write_ipc(feather, compression="zstd", compat_level=pl.CompatLevel.oldest())
        spans.write_parquet(parquet)
        events = spans_of(load.open(folder / "run"), with_extras=False).head(_EVENTS)
        database = training(1, steps=_STEPS).write(folder / "a.sqlite")
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(f"pragma page_size = {_PAGE}; vacuum;")
        _otf2(folder / "otf2")
        note = json.dumps({"host": HOST.decode(), "path": PLACE.decode()}).encode()
        return {
            "native": [recorded, _plain(recorded), killed.read_bytes(), server],
            "samples": [sampled.read_bytes(), _samples()],
            "segment": [segment],
            "side": [side],
            "growing": [growing],
            "progress": [progress],
            "note": [note],
            "feather": [feather.read_bytes()],
            "parquet": [parquet.read_bytes()],
            "csv": [events.write_csv().encode()],
            "kineto": [_events()],
            "dftracer": [_io_lines()],
            "nsight": [database.read_bytes()],
            "perfetto": [perfetto_files.training(2, 5).written()],
            "otlp": [
                otlp_files.as_lines(otlp_files.megatron(2, 3)),
                otlp_files.as_lines(otlp_files.training_with_named_calls(3, 4)),
                _exported(folder / "run", "otlp"),
            ],
            "otlp_messages": [
                otlp_files.framed(otlp_files.training_with_named_calls(2, 3), framing)
                for framing in ("message", "lengths", "varints")
            ],
            "nccl_inspector": [
                inspector_files.lines(
                    [*inspector_files.training(0, 8, verbose=verbose), inspector_files.stats(0, 3)]
                )
                for verbose in (True, False)
            ],
            "rocprof": [rocprof_files.training(3).written()],
            "exported_events": [_exported(folder / "shards", "perfetto")],
            "horovod": [horovod_timeline.timeline(2, 5)],
            "viztracer": [viztracer_file.trace(5)],
            "py_spy": [stack_files.py_spy(5)],
            "speedscope": [stack_files.speedscope(5), stack_files.by_events()],
            "xplane": [xplane_files.training(_STEPS).SerializeToString()],
            "otf2": [(folder / "otf2/traces/1.evt").read_bytes()],
            "otf2_definitions": [(folder / "otf2/traces.def").read_bytes()],
            "flight_recorder": [pickle.dumps(_dump(), 4), pickle.dumps(_dump(), 2)],
        }


def _exported(run: Path, form: str) -> bytes:
    """Return a run as one of our exports has it."""
    place = run.with_name(f"{run.name}.{form}")
    EXPORTS[form].save(select_content(load.open(run)), place)
    return place.read_bytes()


def _plain(recorded: bytes) -> bytes:
    """Return a file whose columns are not compressed, so that values can be changed where they are."""
    return checked_file(table_of(recorded), pa.ipc.IpcWriteOptions(), None)


def _samples() -> bytes:
    rows = [
        {
            "pid": 1001,
            "thread": 1,
            "thread_name": "MainThread",
            "start_ns": number * _MS,
            "end_ns": number * _MS + 900,
            "frames": ["<module> (train.py:9)", "step (train.py:4)"],
        }
        for number in range(20)
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SAMPLE_SCHEMA) as stream:
        columns = [pa.array([row[f.name] for row in rows], f.type) for f in SAMPLE_SCHEMA]
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SAMPLE_SCHEMA))
    return sink.getvalue().to_pybytes()


def _events() -> bytes:
    """Return a small profile of the same kind: the first events of each sort, and what is beside."""
    document = json.loads(gzip.decompress(KINETO.read_bytes()))
    events = document["traceEvents"]
    sample = [e for e in events if e.get("cat") in {"user_annotation", "kernel", "gpu_memcpy"}][:20]
    sample += [e for e in events if e.get("cat") in {"cpu_op", "cuda_runtime"}][:_EVENTS]
    sample += [e for e in events if e.get("ph") != "X"][:20]
    return json.dumps(document | {"traceEvents": sample}, indent=1).encode()


def main() -> None:
    """Write the bases anew."""
    for name, contents in _write_bases().items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("base-*"):
            old.unlink()
        for number, content in enumerate(contents):
            (folder / f"base-{number}").write_bytes(content)


if __name__ == "__main__":
    main()
