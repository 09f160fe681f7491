"""The reader for DFTracer's events: a file, or a folder of one a process.

A file does not say its rank. A file alone, of one process, is shown as rank 0, and the verdict stays
open; of several files the user says each one's rank. Files of one rank, such as those of the processes
that load its data, are threads of that rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.dftracer.columns import is_dftracer, read_events
from tracelens.readers.links import check_inside, inside
from tracelens.readers.spans import Origin
from tracelens.schema.rules import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.dftracer.columns import FileEvents

__all__ = ["DFTracerReader"]

_SUFFIXES: Final = (".pfw", ".pfw.gz", ".json", ".json.gz")
_SHOWN: Final = 3


@dataclass(frozen=True)
class DFTracerReader:
    """Reads a file or a folder of DFTracer's events."""

    name: str = "log of DFTracer"

    def sniff(self, path: Path) -> bool:
        """Return whether it is a file of DFTracer's, or a folder with at least one."""
        return any(map(is_dftracer, inside(_files(path), path)))

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file can be read.
            EmptyTrace: there is no span in them.
            UnusableInput: it is not known of which rank a file is.
        """
        files, notes = _read(path, how)
        ranks = _ranks(files, how.rank_of)
        rows = pl.concat(
            file.rows.with_columns(
                pl.lit(rank, pl.Int32).alias("rank"), pl.lit(file.path.name).alias("file")
            )
            for file, rank in zip(files, ranks, strict=True)
        )
        if rows.is_empty():
            raise EmptyTrace(f"'{path}' holds no event of DFTracer that lasts (phase X).")
        unusable = sum(file.unusable for file in files)
        origin = Origin(
            f"'{path.name}'",
            path.name,
            once=True,
            unusable={lacking("start_ns"): unusable} if unusable else {},
            notes=notes,
            recognition=_recognition(rows, files, ranks, how.rank_of),
        )
        return spans.build(rows, origin).with_(path=path)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        entry for entry in path.iterdir() if entry.name.endswith(_SUFFIXES) and entry.is_file()
    )


def _read(path: Path, how: Reading) -> tuple[list[FileEvents], list[Note]]:
    files = _files(path)
    found, notes = [], []
    for done, file in enumerate(files):
        if how.progress:
            how.progress(done, len(files))
        try:
            check_inside(file, path)
            found.append(read_events(file))
        except (NotATrace, OSError) as error:
            sentence = f"'{file.name}' cannot be read: {error}."
            if len(files) == 1:
                raise NotATrace(sentence) from error
            notes.append(Note(file.name, sentence, "unreadable"))
    if not found:
        raise NotATrace(notes[0].sentence if notes else f"'{path}' holds no file of DFTracer.")
    return found, notes + [note for file in found for note in _damaged(file)]


def _damaged(file: FileEvents) -> Iterator[Note]:
    name = file.path.name
    if file.cut:
        sentence = (
            f"'{name}' was cut off ({file.damage}): the {file.events:,} events before are read."
        )
        yield Note(name, sentence, "truncated")
    if file.lost:
        sentence = f"Of '{name}', {fmt.count(file.lost, 'event')} cannot be read as JSON."
        yield Note(name, sentence, "dropped")


def _ranks(files: Sequence[FileEvents], given: Mapping[str, int]) -> list[int]:
    """Return the rank of each file.

    Raises:
        UnusableInput: it is not known.
    """
    silent = [file.path.name for file in files if file.path.name not in given]
    alone = len(files) == 1 and len(files[0].pids) <= 1
    if silent and not alone:
        shown = fmt.series([f"'{name}'" for name in silent[:_SHOWN]])
        more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        raise UnusableInput(
            f"DFTracer does not write ranks, and there are events of several processes: say of which "
            f"rank {shown}{more} {'is' if len(silent) == 1 else 'are'} with "
            f"--rank-of {silent[0]}=RANK; processes that load data for a rank are of that rank."
        )
    return [given.get(file.path.name, 0) for file in files]


def _recognition(
    rows: pl.DataFrame, files: Sequence[FileEvents], ranks: Sequence[int], given: Mapping[str, int]
) -> Recognition:
    sorts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for file in files:
        sorts += file.sorts
        left_out += file.left_out
    listed = ", ".join(
        f"{count:,} {sort or 'without a category'}" for sort, count in sorts.most_common(12)
    )
    found = [("events", f"{sum(sorts.values()):,}: {listed}")]
    if rows["bytes"].count():
        found.append(("I/O", _moved(rows)))
    epochs = set[int]().union(*(file.epochs for file in files))
    steps = set[tuple[int, int]]().union(*(file.steps for file in files))
    if epochs:
        found.append(
            ("epochs", f"{len(epochs):,}, with {fmt.count(len(steps), 'step')} that events name")
        )
    return Recognition(
        format="log of DFTracer",
        found=tuple(found),
        left_out=tuple(left_out.items()),
        gaps=tuple(_gaps(rows, files, ranks, given)),
    )


def _moved(rows: pl.DataFrame) -> str:
    moved = rows.filter(pl.col("bytes").is_not_null())
    is_read = pl.col("kind").cast(pl.String) == "data"
    read, written = (moved.filter(which)["bytes"].sum() for which in (is_read, ~is_read))
    return f"{moved.height:,} calls moved {read:,} bytes in and {written:,} out"


def _gaps(
    rows: pl.DataFrame, files: Sequence[FileEvents], ranks: Sequence[int], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique().cast(pl.String))
    cut = [file.path.name for file in files if file.cut]
    if cut:
        yield Gap(
            f"{fmt.series(cut)} {'was' if len(cut) == 1 else 'were'} cut off",
            "what happened after the last whole event",
            "Let the program end by itself, so that DFTracer closes its file.",
        )
    if any(file.path.name not in given for file in files):
        yield Gap(
            "the file does not say of which rank it is",
            "what other ranks did, and which one is slow",
            "Give the files of all processes, each with --rank-of FILE=RANK.",
        )
    if len(set(ranks)) > 1:
        yield Gap(
            "collectives are not recorded",
            "which rank others wait for",
            "Record the run with 'tracelens record', or profile it with torch.profiler.",
        )
    if "step" not in kinds:
        yield Gap(
            "no step is marked by a span (numbers of steps in events are those of samples loaded ahead)",
            "where steps begin",
            "Record the run with 'tracelens record'.",
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no span names a phase of training",
            "what ranks did while they did not load data",
            "Wrap forward, backward and optimizer in DFTracer's functions of these names.",
        )
