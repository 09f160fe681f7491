"""One OTF2 archive: its files, held to the gate, and the events that a process of its own reads."""

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
from tracelens.schema.gate import check_path, limit

if TYPE_CHECKING:
    from collections.abc import Iterator

ANCHOR: Final = ".otf2"
MAGIC: Final = b"\x03BOTF2"
_UNPACK: Final = Path(__file__).with_name("unpack.py")
_SUFFIXES: Final = (".def", ".evt", ".snap", ".marker")
_ABSENT: Final = -1  # of a number in a column
MAX_CHARACTERS_OF_REASON: Final = 200  # characters of an error of OTF2's library [policy]


@dataclass(frozen=True, eq=False)
class Archive:
    """An archive: its definitions (`unpack.describe_definitions`) and the columns that `unpack` lists.

    Times are ticks since the archive's first; absent numbers are null.
    """

    definitions: dict[str, Any]
    spans: pl.DataFrame
    operations: pl.DataFrame
    missing_locations: tuple[int, ...]  # those that recorded events and have no file


def read_archive(anchor: Path) -> Archive:
    """Read an archive by OTF2's own library.

    Raises:
        MissingExtra: that is not installed.
        NotATrace: the archive is damaged, or a file of it may not be opened.
    """
    no_library = MissingExtra.from_extra(f"Reading '{anchor.name}', a trace in OTF2,", "otf2")
    if find_spec("otf2") is None:
        raise no_library
    archive_bytes = sum(file.stat().st_size for file in _admit_files(anchor))
    cpu_seconds = int(limit("cpu") + archive_bytes / BYTES_A_SECOND)
    arguments = [str(anchor.absolute()), *map(str, (limit("memory"), cpu_seconds, limit("rows")))]
    try:
        result = subprocess.run(  # our own file, and no name of the user's
            [sys.executable, "-I", str(_UNPACK), *arguments],
            capture_output=True,
            timeout=10 * cpu_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _damaged(anchor, "reading it does not end") from error
    if result.returncode == NO_LIBRARY:
        raise no_library
    if result.returncode:
        raise _damaged(anchor, _reason(result))
    definitions, spans, operations = _parse_output(result.stdout)
    folder = anchor.with_suffix("")
    missing_locations = tuple(
        number
        for number, *_, event_count in definitions["locations"]
        if event_count and not (folder / f"{number}.evt").is_file()
    )
    return Archive(definitions, spans, operations, missing_locations)


def _admit_files(anchor: Path) -> Iterator[Path]:
    """Yield the files of an archive, each through the gate."""
    folder = anchor.with_suffix("")
    paths = [anchor, *(anchor.with_suffix(suffix) for suffix in _SUFFIXES), folder]
    if folder.is_dir():
        paths += sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES)
    for path in paths:
        if not (path == anchor or path.is_symlink() or path.exists()):
            continue
        try:
            check_inside(path, anchor if path == anchor else anchor.parent)
            if path != folder:
                yield check_path(path)
        except (NotATrace, OSError) as error:
            raise NotATrace(f"'{path.name}' of the trace is not read: {error}.") from error


def _reason(result: subprocess.CompletedProcess[bytes]) -> str:
    """Return the error of OTF2's library; its messages begin with the line of its source."""
    if result.returncode < 0:
        return "it ended OTF2's library, or took too much memory or time"
    text = " ".join(result.stdout.decode("utf-8", "replace").split())
    reason = text.rpartition("error: ")[2] or "OTF2's library could not read it"
    return reason.rstrip(".")[:MAX_CHARACTERS_OF_REASON]


def _damaged(anchor: Path, reason: str) -> NotATrace:
    return NotATrace(f"'{anchor}' is no whole OTF2 archive ({reason}): record it again.")


def _parse_output(output: bytes) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame]:
    """Return the definitions, the spans and the operations that `unpack` printed.

    Spans have one row each, operations (of MPI) one per event of theirs.
    """
    definitions_line, _, content = output.partition(b"\n")
    definitions: dict[str, Any] = json.loads(definitions_line)
    numbers = np.frombuffer(content, np.int64)  # column by column
    span_numbers = numbers[: definitions["span_count"] * len(SPANS)]
    operation_numbers = numbers[len(span_numbers) :]
    spans = pl.DataFrame(dict(zip(SPANS, np.split(span_numbers, len(SPANS)), strict=True)))
    operation_columns = np.split(operation_numbers, len(OPERATIONS))
    operations = pl.DataFrame(dict(zip(OPERATIONS, operation_columns, strict=True)))
    end = pl.when(pl.col("end") != _ABSENT).then("end")
    spans = spans.with_columns(end=end).with_row_index("span")
    nullable_names = [name for name in OPERATIONS if name != "time"]
    nulled = [pl.when(pl.col(name) != _ABSENT).then(name) for name in nullable_names]
    return definitions, spans, operations.with_columns(nulled)
