"""Trace folders of TraceLens as docs/format.md describes them: Arrow files and live segments."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from support.hostile import changes
from support.hostile.run import draw_run

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_WORD: Final = pa.dictionary(pa.int8(), pa.string())
_COLUMNS: Final = {
    "start_ns": pa.int64(),
    "duration_ns": pa.int64(),
    "type": _WORD,
    "kind": _WORD,
    "op": _WORD,
    "name": pa.dictionary(pa.int32(), pa.string()),
    "status": _WORD,
    "thread": pa.uint16(),
    "depth": pa.uint16(),
    "step": pa.int32(),
    "micro_step": pa.uint16(),
    "communicator": pa.int32(),
    "seq": pa.uint32(),
    "bytes": pa.int64(),
    "algorithm": _WORD,
    "bucket": pa.int32(),
    "peer": pa.int32(),
    "shard": pa.int32(),
    "key": pa.int32(),
    "queue_depth": pa.uint16(),
    "request": pa.uint64(),
    "device_start_ns": pa.int64(),
    "device_duration_ns": pa.int64(),
    "stream": pa.uint16(),
    "value": pa.float64(),
    "rank": pa.dictionary(pa.int8(), pa.int32()),
    "process": _WORD,
}


def _side(rank: int, world: int, first_ns: int, last_ns: int) -> dict[str, Any]:
    return {
        "process": {
            "role": "worker",
            "rank": rank,
            "world": world,
            "local_rank": rank,
            "host": f"n{rank // 2}",
            "clock_domain": f"boot{rank // 2}",
            "pid": 100 + rank,
            "parent_pid": 1,
            "parent_rank_pid": None,
            "incarnation": 1_700_000_000_000_000_000,
            "job": "job",
            "shard": None,
            "versions": {"python": "3.11"},
            "schema": 2,
        },
        "threads": [
            {"index": 0, "name": "main", "native_id": 5, "in_flight": False, "device": None},
            {"index": 1, "name": "collectives", "native_id": 0, "in_flight": True, "device": None},
        ],
        "clocks": [
            {
                "method": "local",
                "monotonic_ns": time_ns,
                "window_ns": 100,
                "wall_ns": time_ns + 10**18,
                "peer": None,
                "offset_ns": None,
                "device": None,
            }
            for time_ns in (first_ns, last_ns)
        ]
        + [
            {
                "method": "ping_pong",
                "monotonic_ns": first_ns,
                "window_ns": 9000,
                "wall_ns": None,
                "peer": 0,
                "offset_ns": 5,
                "device": None,
            }
        ],
        "dropped": {},
        "complete": True,
        "retention": {
            "last": None,
            "every": None,
            "burst": 1,
            "budget_bytes": None,
            "detail": "phase",
        },
        "kept": [],
        "past": [],
        "thinned": {},
        "sorted": True,
        "notes": [],
        "definitions": [],
    }


def _processes(random: Random) -> dict[int, dict[str, Any]]:
    """Draw rows, side tables and communicators by rank, and change them."""
    spans = draw_run(random)
    ranks = sorted({span.rank for span in spans})[:64]
    processes: Any = {}
    for rank in ranks:
        spans_of_rank = [span for span in spans if span.rank == rank]
        rows = [
            {
                "start_ns": s.start,
                "duration_ns": s.end - s.start,
                "type": "span",
                "kind": s.kind,
                "name": s.name,
                "status": "closed",
                "thread": 0,
                "depth": int(s.kind != "step"),
                "step": s.step,
                **(
                    {"op": "allreduce", "communicator": 0, "seq": s.step, "bytes": 4096}
                    if s.kind == "reduction"
                    else {}
                ),
            }
            for s in spans_of_rank
        ]
        rows += [
            {
                "start_ns": s.end,
                "duration_ns": 0,
                "type": "counter",
                "kind": "step",
                "name": "samples",
                "status": "closed",
                "thread": 0,
                "depth": 0,
                "step": s.step,
                "value": 32.0,
            }
            for s in spans_of_rank
            if s.kind == "step"
        ]
        rows.sort(key=lambda row: int(str(row["start_ns"])))
        processes[rank] = {
            "rows": rows,
            "side": _side(rank, len(ranks), spans_of_rank[0].start, spans_of_rank[-1].end),
            "communicators": [{"index": 0, "uid": "ab12", "name": "world", "ranks": ranks}],
        }
    for _ in range(random.choice([0, 1, 1, 1, 2, 2, 3, 6])):
        processes = changes.change(processes, random)
    return processes if isinstance(processes, dict) else {}


def write_folder(folder: Path, random: Random) -> Path:
    """Write a trace folder of finished processes; some files are damaged, some sums are wrong."""
    folder = folder / "run"
    folder.mkdir()
    for rank, changed in _processes(random).items():
        process = changed if isinstance(changed, dict) else {}
        name = (
            f"worker-{rank:05}-{100 + rank}.arrow"
            if isinstance(rank, int)
            else "worker-00000-1.arrow"
        )
        path = folder / name
        _write_file(path, process, random)
        if random.random() < 0.1:
            path.write_bytes(changes.damage(path.read_bytes(), random))
    return folder


def _write_file(path: Path, process: dict[str, Any], random: Random) -> None:
    rows = process.get("rows")
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    rank = (
        (process.get("side") or {}).get("process", {})
        if isinstance(process.get("side"), dict)
        else {}
    )
    rank = rank.get("rank") if isinstance(rank, dict) else 0
    cells = {name: [row.get(name) for row in rows] for name in _COLUMNS}
    cells["rank"], cells["process"] = [rank] * len(rows), [path.stem] * len(rows)
    if random.random() < 0.05:
        del cells[random.choice(list(cells))]
    arrays = [_array(values, _COLUMNS[name]) for name, values in cells.items()]
    texts = [
        json.dumps(process.get(part), default=repr, skipkeys=True)
        for part in ("side", "communicators")
    ]
    metadata: dict[str | bytes, str | bytes] = {
        "tracelens": texts[0],
        "tracelens.communicators": texts[1],
    }
    if random.random() < 0.9:
        metadata["tracelens.crc32"] = f"{zlib.crc32(''.join(texts).encode()):08x}"
    schema = pa.schema(
        [pa.field(name, array.type) for name, array in zip(cells, arrays, strict=True)],
        metadata=metadata,
    )
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(
            file,
            schema,
            options=pa.ipc.IpcWriteOptions(compression=random.choice(["zstd", "zstd", None])),
        ) as writer,
    ):
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _array(cells: list[Any], kind: Any) -> Any:
    """Return a column of its type; cells that do not fit become null, or another type for all."""
    for wanted in (kind, None):
        try:
            return pa.array(cells, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    fitting = []
    for cell in cells:
        try:
            pa.array([cell], kind)
            fitting.append(cell)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            fitting.append(None)
    return pa.array(fitting, kind)


def write_segments(folder: Path, random: Random) -> Path:
    """Write a trace folder of processes that record now, or were killed."""
    folder = folder / "run"
    folder.mkdir()
    for rank, process in list(_processes(random).items())[:4]:
        number = rank if isinstance(rank, int) else 0
        inner = folder / f"worker-{number:05}-{100 + number}.segments"
        inner.mkdir(exist_ok=True)
        _write_segment(inner, process if isinstance(process, dict) else {}, random)
    return folder


def _write_segment(inner: Path, process: dict[str, Any], random: Random) -> None:
    rows = process.get("rows")
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    kinds = list(
        dict.fromkeys(
            (str(row.get("kind")), str(row.get("name")), str(row.get("op")), str(row.get("type")))
            for row in rows
        )
    )
    side = _dict(process.get("side"))
    lines: list[Any] = [{"table": "process", **_dict(side.get("process"))}]
    for index, (kind, name, op, event) in enumerate(kinds):
        lines.append(
            {
                "table": "definitions",
                "id": index + 1,
                "name": name,
                "kind": kind,
                "type": event,
                "op": op if op != "None" else None,
                "algorithm": None,
                "communicator": 0 if op != "None" else None,
                "shard": None,
            }
        )
    tables = {"threads": side.get("threads"), "clocks": side.get("clocks")}
    for table, found in (tables | {"communicators": process.get("communicators")}).items():
        lines += [{"table": table, **row} for row in _list(found) if isinstance(row, dict)]
    lines += [{"table": "end"}] if random.random() < 0.3 else []
    if random.random() < 0.3:
        lines = changes.change(lines, random)
    text = (
        b"\n".join(json.dumps(line, default=repr, skipkeys=True).encode() for line in lines) + b"\n"
    )
    slots = b"".join(_slot(row, kinds) for row in rows)
    capacity = len(rows) + random.choice([0, 0, 3, 2**40])
    header = struct.pack("<8sIHHQQ32x", b"TLSEGMNT", 0x01020304, 2, 64, capacity, 100)
    content = header + slots + bytes(64 * random.choice([0, 4]))
    if random.random() < 0.3:
        content = changes.damage(content, random)
    if random.random() < 0.1:
        text = changes.damage(text, random)
    (inner / "side.jsonl").write_bytes(text)
    (inner / "000000.seg").write_bytes(content)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _slot(row: dict[str, Any], kinds: list[tuple[str, str, str, str]]) -> bytes:
    def clamp(value: Any, least: int, most: int, absent: int) -> int:
        if isinstance(value, float) and abs(value) < 1e300:
            value = int(value)
        return max(least, min(most, value)) if isinstance(value, int) else absent

    start = clamp(row.get("start_ns"), -(2**63), 2**63 - 1, 0)
    end = max(
        -(2**63), min(2**63 - 1, start + clamp(row.get("duration_ns"), -(2**63), 2**63 - 1, 0))
    )
    definition = (
        kinds.index(
            (str(row.get("kind")), str(row.get("name")), str(row.get("op")), str(row.get("type")))
        )
        + 1
    )
    value = row.get("value")
    request = struct.unpack("<Q", struct.pack("<d", value))[0] if isinstance(value, float) else 0
    return struct.pack(
        "<qqqQIiiiiHHHHI",
        start,
        end,
        clamp(row.get("bytes"), -(2**63), 2**63 - 1, -1),
        request,
        clamp(row.get("seq"), 0, 2**32 - 1, 2**32 - 1),
        clamp(row.get("step"), -(2**31), 2**31 - 1, -1),
        -1,
        -1,
        -1,
        clamp(row.get("thread"), 0, 65535, 0),
        65535,
        65535,
        0,
        definition,
    )
