"""One dump as rows in our words.

Source: PyTorch 2.4 to 2.13, `torch/csrc/distributed/c10d/FlightRecorder.hpp` (versions 2.2 to 2.10).
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.errors import NotATrace
from tracelens.readers.links import check_inside
from tracelens.readers.words import meaning
from tracelens.schema.gate import opened
from tracelens.schema.rules import LATEST_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COLUMNS", "Dump", "dump_of", "rank_in", "translated"]

COLUMNS: Final[dict[str, pl.DataType]] = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),  # null = not completed
    "kind": pl.String(),
    "op": pl.String(),
    "name": pl.String(),
    "communicator": pl.String(),
    "group": pl.String(),
    "seq": pl.Int64(),
    "bytes": pl.Int64(),
    "shapes": pl.String(),
    "thread": pl.String(),
    "called": pl.String(),  # where, as file:line
}
_UNPICKLE: Final = Path(__file__).with_name("unpickle.py")
_PATIENCE_S: Final = 300
_RANK: Final = re.compile(r"(\d{1,7})(?:\.(?:pkl|pickle|bin))?$")
_SIZES: Final = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4, "Half": 2,
    "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip
_BARRIER: Final = "barrier"
_OWN_FILES: Final = ("torch/distributed/", "torch/nn/parallel/")


@dataclass(frozen=True, eq=False)
class Dump:
    """What one file holds: `rows` in `COLUMNS`; `members` are the ranks of groups, where it says so."""

    file: str
    version: str
    rows: pl.DataFrame
    members: dict[str, list[int]]
    unusable: int
    untimed: int


def rank_in(name: str) -> int | None:
    """Return the rank that a file is named after, as PyTorch does: ``nccl_trace_rank_3``."""
    found = _RANK.search(name)
    return int(found[1]) if found else None


def dump_of(path: Path, trace: Path) -> Dump:
    """Read a dump of a trace in a process of its own.

    Raises:
        NotATrace: it is none, damaged, or a link out of the trace.
    """
    return translated(_plain(path, trace), path)


def translated(value: Any, path: Path) -> Dump:
    """Translate the plain value of a dump.

    Raises:
        NotATrace: it is none.
    """
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list) or "version" not in value:
        raise NotATrace(
            f"'{path}' is no dump of Flight Recorder: expected a dictionary with 'version' and "
            "'entries'."
        )
    rows = [row for entry in entries for row in [_row(entry)] if row is not None]
    table = pl.DataFrame(rows, schema=COLUMNS, orient="row", strict=False)
    return Dump(
        file=path.name,
        version=str(value["version"])[:20],
        rows=table,
        members=_members(value.get("pg_config")),
        unusable=len(entries) - len(rows),
        untimed=table.filter(pl.col("end_ns") == pl.col("start_ns")).height,
    )


def _plain(path: Path, trace: Path) -> Any:
    """Return the value of a pickle that has plain values only."""
    try:
        check_inside(path, trace)
        with opened(path) as file:
            done = subprocess.run(  # our own file, and no name of the user's
                [sys.executable, "-I", str(_UNPICKLE)],
                stdin=file,
                capture_output=True,
                timeout=_PATIENCE_S,
                check=False,
            )
    except NotATrace as error:
        raise NotATrace(f"'{path}' is not read: {error}.") from error
    except subprocess.TimeoutExpired as error:
        raise NotATrace(f"'{path}' is damaged: reading it did not end within minutes.") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        reason = " ".join(text.split()).rstrip(".") or "reading it took too much memory or time"
        raise NotATrace(f"'{path}' is no whole dump of Flight Recorder ({reason}).")
    return json.loads(text)


def _members(config: Any) -> dict[str, list[int]]:
    """Return the ranks of groups; gloo's dumps have none."""
    found: dict[str, list[int]] = {}
    for name, facts in config.items() if isinstance(config, dict) else ():
        try:
            ranks = json.loads(facts["ranks"])
        except (TypeError, KeyError, ValueError, RecursionError):
            continue
        if isinstance(ranks, list) and ranks and all(_is_count(rank) for rank in ranks):
            found[str(name)] = ranks
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 22


def _row(entry: Any) -> tuple[Any, ...] | None:
    """Return a call; None for what is none, or has no time."""
    if not isinstance(entry, dict):
        return None
    start = _time(entry.get("time_discovered_started_ns")) or _time(entry.get("time_created_ns"))
    created = _time(entry.get("time_created_ns"))
    if created is None or start is None:
        return None
    ended = _time(entry.get("time_discovered_completed_ns"))
    over = entry.get("state") == "completed" or entry.get("retired") is True
    if over and ended is None:
        ended = created  # when it ended was not recorded
    name = str(entry.get("profiling_name", "?"))
    kind, op = _meant(name)
    p2p = entry.get("is_p2p") is True
    seq = entry.get("p2p_seq_id" if p2p else "collective_seq_id")
    group = entry.get("process_group")
    number, label = (*group, "")[:2] if isinstance(group, list) and group else ("?", "")
    return (
        created, max(ended, created) if over and ended is not None else None, kind, op, name,
        str(number), str(label or number), seq if _is_count(seq) and not p2p else None, _bytes(entry),
        json.dumps(entry.get("input_sizes"))[:200], "calls", _called(entry.get("frames")),
    )  # fmt: skip


def _time(value: object) -> int | None:
    return value if isinstance(value, int) and 0 < value < LATEST_NS else None


def _meant(name: str) -> tuple[str, str | None]:
    word = name.partition(":")[2].partition(" ")[0].strip("_").removesuffix("_base") or name
    if word.endswith(_BARRIER):
        return "reduction", _BARRIER
    found = meaning(word)
    return found if found and found[0] == "reduction" else ("reduction", None)


def _bytes(entry: Mapping[str, Any]) -> int | None:
    """Return the bytes that go in; null where a type or a shape is not known."""
    shapes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    if not (isinstance(shapes, list) and isinstance(types, list) and len(shapes) == len(types)):
        return None
    total = 0
    for shape, kind in zip(shapes, types, strict=True):
        size = _SIZES.get(kind) if isinstance(kind, str) else None
        if size is None or not isinstance(shape, list) or not all(map(_is_size, shape)):
            return None
        total += size * math.prod(shape)
    return total if total < 1 << 62 else None


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 40


def _called(frames: Any) -> str:
    """Return the line of the program that called, which is below PyTorch's own."""
    for frame in frames if isinstance(frames, list) else ():
        file = frame.get("filename") if isinstance(frame, dict) else None
        if isinstance(file, str) and not any(part in file for part in _OWN_FILES):
            return f"{file}:{frame.get('line')}"[:300]
    return ""
