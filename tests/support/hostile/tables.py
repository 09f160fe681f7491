"""Tables of spans: CSV as text, Parquet and Arrow with columns of many types."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from support.hostile import changes
from support.hostile.run import draw_run

if TYPE_CHECKING:
    from pathlib import Path


_TYPES: Final = (
    *(
        pa.int8(),
        pa.int32(),
        pa.int64(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
    ),
    *(
        pa.timestamp("ns"),
        pa.timestamp("s"),
        pa.duration("us"),
        pa.bool_(),
        pa.binary(),
        pa.null(),
        pa.date32(),
    ),
    *(
        pa.dictionary(pa.int8(), pa.string()),
        pa.decimal128(38, 3),
        pa.list_(pa.int64()),
        pa.time64("ns"),
    ),
)
_DELIMITERS: Final = (",", ",", ";", "\t", "|")


def _rows(random: Random) -> list[dict[str, Any]]:
    rows: list[Any] = []
    for span in draw_run(random):
        row = {
            "rank": span.rank,
            "start_ns": span.start,
            "end_ns": span.end,
            "kind": span.kind,
            "name": span.name,
            "step": span.step,
        }
        if span.kind == "reduction":
            row |= {"op": "allreduce", "bytes": 4096, "seq": span.step, "communicator": "world"}
        rows.append(row)
    extra = random.choice(
        [
            None,
            None,
            "host",
            "thread",
            "stream",
            "device_start_ns",
            "world",
            "clock",
            "status",
            "type",
            "value",
            "peer",
            "role",
            "request",
            "shard",
            "key",
        ]
    )
    for row in rows if extra else ():
        row[extra] = {
            "host": f"n{row['rank'] // 2}",
            "status": "closed",
            "type": "span",
            "role": "worker",
            "clock": "c",
        }.get(str(extra), row["rank"])
    if random.random() < 0.2:
        for row in rows:
            row["duration_us"] = (row.pop("end_ns") - row["start_ns"]) / 1000
            row["start_us"] = row.pop("start_ns") / 1000
    for _ in range(random.choice([0, 1, 1, 1, 2, 2, 3, 6])):
        rows = changes.change(rows, random)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _names(rows: list[dict[str, Any]]) -> list[Any]:
    return list(dict.fromkeys(key for row in rows for key in row)) or ["rank", "start_ns", "end_ns"]


def write_text(folder: Path, random: Random) -> tuple[Path, tuple[str, ...]]:
    """Write a CSV file."""
    rows = _rows(random)
    names, delimiter = _names(rows), random.choice(_DELIMITERS)

    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        quoted = any(mark in text for mark in (delimiter, '"', "\n")) and random.random() < 0.95
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [
        delimiter.join(map(cell, names)),
        *(delimiter.join(cell(row.get(name)) for name in names) for row in rows),
    ]
    content = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    if random.random() < 0.25:
        content = changes.damage(content, random)
    path = folder / random.choice(["t.csv", "t.csv", "t.tsv"])
    path.write_bytes(content)
    return path, random.choice([(), (), ("--one-clock",), ("--map", f"{names[0]}=rank")])


def write_binary(folder: Path, random: Random, kind: str) -> tuple[Path, tuple[str, ...]]:
    """Write a Parquet or an Arrow file."""
    rows = _rows(random)
    arrays, names = [], [str(name).encode("utf-8", "replace").decode() for name in _names(rows)]
    for name in _names(rows):
        cells = [row.get(name) for row in rows]
        arrays.append(_array(cells, random.choice(_TYPES) if random.random() < 0.05 else None))
    if random.random() < 0.05:
        arrays, names = arrays + arrays[:1], names + names[:1]
    table = pa.Table.from_arrays(arrays, names=names)
    path = folder / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(
            table,
            path,
            compression=random.choice(["none", "snappy", "zstd"]),
            use_dictionary=random.random() < 0.5,
        )
    else:
        options = pa.ipc.IpcWriteOptions(compression=random.choice([None, "lz4", "zstd"]))
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_file(file, table.schema, options=options) as writer,
        ):
            writer.write_table(table)
    if random.random() < 0.4:
        path.write_bytes(changes.damage(path.read_bytes(), random))
    return path, ()


def _array(cells: list[Any], kind: Any) -> Any:
    for wanted in (kind, None, pa.int64(), pa.float64()):
        try:
            return pa.array(cells, wanted)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.array(
        [None if cell is None else str(cell).encode("utf-8", "replace").decode() for cell in cells],
        pa.string(),
    )


def sound_table(folder: Path) -> Path:
    """Write a sound CSV file of a small run."""
    path = folder / "sound.csv"
    lines = ["rank,start_ns,end_ns,kind,name,step"]
    lines += [
        f"{span.rank},{span.start},{span.end},{span.kind},{span.name},{span.step}"
        for span in draw_run(Random(2))
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
