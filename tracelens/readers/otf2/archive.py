"""One OTF2 archive: its files, held to the gate, and what a process of its own found in them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.containment import BYTES_A_SECOND
from tracelens.errors import MissingExtra, NotATrace
from tracelens.readers.links import check_inside
from tracelens.readers.otf2.unpack import NO_LIBRARY, OPERATIONS, SPANS
from tracelens.schema.gate import limit, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ANCHOR", "MAGIC", "Archive", "archive_of"]

ANCHOR: Final = ".otf2"
MAGIC: Final = b"\x03BOTF2"
_UNPACK: Final = Path(__file__).with_name("unpack.py")
_OF_ARCHIVES: Final = (".def", ".evt", ".snap", ".marker")
_ABSENT: Final = -1  # of a number in a column
_MOST_TEXT: Final = 200


@dataclass(frozen=True, eq=False)
class Archive:
    """What an archive holds: its definitions (`unpack.described`) and the columns that `unpack` lists.

    Times are ticks since the archive's first; what there is none of is null. `missing` are the locations
    that recorded events and have no file.
    """

    facts: dict[str, Any]
    spans: pl.DataFrame
    operations: pl.DataFrame
    missing: tuple[int, ...]


def archive_of(anchor: Path) -> Archive:
    """Read an archive by OTF2's own library.

    Raises:
        MissingExtra: that is not installed.
        NotATrace: the archive is damaged, or a file of it is none that may be opened.
    """
    missing = MissingExtra.naming(f"Reading '{anchor.name}', a trace in OTF2,", "otf2")
    if find_spec("otf2") is None:
        raise missing
    size = sum(file.stat().st_size for file in _admitted(anchor))
    seconds = int(limit("cpu") + size / BYTES_A_SECOND)
    words = [str(anchor.absolute()), *map(str, (limit("memory"), seconds, limit("rows")))]
    try:
        done = subprocess.run(  # our own file, and no name of the user's
            [sys.executable, "-I", str(_UNPACK), *words],
            capture_output=True,
            timeout=10 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _damaged(anchor, "reading it does not end") from error
    if done.returncode == NO_LIBRARY:
        raise missing
    if done.returncode:
        raise _damaged(anchor, _reason(done))
    facts, spans, operations = _parsed(done.stdout)
    places = anchor.with_suffix("")
    lost = tuple(
        place[0]
        for place in facts["locations"]
        if place[4] and not (places / f"{place[0]}.evt").is_file()
    )
    return Archive(facts, spans, operations, lost)


def _admitted(anchor: Path) -> Iterator[Path]:
    """Yield the files of an archive, each through the gate.

    Raises:
        NotATrace: one is a link to elsewhere, no regular file, or beyond the limit of a file.
    """
    folder = anchor.with_suffix("")
    places = [anchor, *(anchor.with_suffix(suffix) for suffix in _OF_ARCHIVES), folder]
    if folder.is_dir():
        places += sorted(file for file in folder.iterdir() if file.suffix in _OF_ARCHIVES)
    for place in places:
        if not (place == anchor or place.is_symlink() or place.exists()):
            continue
        try:
            check_inside(place, anchor if place == anchor else anchor.parent)
            if place != folder:
                yield passed(place)
        except (NotATrace, OSError) as error:
            raise NotATrace(f"'{place.name}' of the trace is not read: {error}.") from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what the library said; its own messages begin with the line of its source."""
    if done.returncode < 0:
        return "it ended OTF2's library, or took too much memory or time"
    words = " ".join(done.stdout.decode("utf-8", "replace").split())
    reason = words.rpartition("error: ")[2] or "OTF2's library could not read it"
    return reason.rstrip(".")[:_MOST_TEXT]


def _damaged(anchor: Path, reason: str) -> NotATrace:
    return NotATrace(f"'{anchor}' is no whole OTF2 archive ({reason}): record it again.")


def _parsed(output: bytes) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame]:
    head, _, content = output.partition(b"\n")
    facts: dict[str, Any] = json.loads(head)
    numbers = np.frombuffer(content, np.int64)
    spans, operations = facts["spans"], facts["operations"]
    split = spans * len(SPANS)
    found = numbers[:split].reshape(len(SPANS), spans)
    noted = numbers[split:].reshape(len(OPERATIONS), operations)
    frame = pl.DataFrame(dict(zip(SPANS, found, strict=True)))
    beside = pl.DataFrame(dict(zip(OPERATIONS, noted, strict=True)))
    absent = (pl.when(pl.col(n) != _ABSENT).then(n) for n in OPERATIONS if n != "time")
    return (
        facts,
        frame.with_columns(end=pl.when(pl.col("end") != _ABSENT).then("end")).with_row_index(
            "span"
        ),
        beside.with_columns(absent),
    )
