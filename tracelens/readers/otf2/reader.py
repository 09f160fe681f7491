"""The reader for OTF2: which rank each location is of, and what cannot be concluded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.files import RANK_UNKNOWN, list_files, note_assumed_rank
from tracelens.readers.links import inside
from tracelens.readers.otf2.archive import ANCHOR, MAGIC, Archive, archive_of
from tracelens.readers.otf2.rows import EPOCH_NS, communicators, process_ranks, rows_of
from tracelens.readers.otf2.unpack import CODES
from tracelens.readers.spans import Origin
from tracelens.schema.gate import beginning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from tracelens.model.trace import Trace

_READ: Final = frozenset((*CODES, "Enter", "Leave"))
_EMPTY: Final = frozenset(("ProgramBegin", "ProgramEnd", "MpiCollectiveBegin"))  # hold no facts
MAX_FILES_LISTED: Final = 5  # files in a sentence: more are counted [policy]
_PAUSED: Final = ("MeasurementOnOff", "BufferFlush")


class Otf2Reader:
    """Reads an archive of OTF2: the folder in which Score-P put it, or its anchor file."""

    name = "Score-P trace (OTF2)"

    def sniff(self, path: Path) -> bool:
        """Return True if a file is an anchor, or one file of a folder."""
        return any(map(_is_anchor, inside(list_files(path, (ANCHOR,)), path)))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read the archive.

        Raises:
            MissingExtra: OTF2's library is not installed.
            NotATrace: it is damaged.
            EmptyTrace: there is no event in it.
            UnusableInput: a folder has several, or it is not known which rank a process is.
        """
        anchor = _anchor(path)
        archive = archive_of(anchor)
        ranks = process_ranks(archive.facts)
        assumed: list[Note] = []
        if not ranks:
            given_rank = options.rank_of.get(path.name, options.rank_of.get(anchor.name))
            if given_rank is None:
                assumed = [note_assumed_rank(path.name, "no MPI is in it")]
            ranks = _rank_of_one(archive.facts, given_rank or 0, path)
        groups = communicators(archive.facts, ranks)
        rows = rows_of(archive, ranks, groups)
        unowned = rows["rank"].null_count()
        rows = rows.drop_nulls("rank")
        if rows.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no region of a rank: record with SCOREP_ENABLE_TRACING=true."
            )
        origin = Origin(
            f"'{path.name}'",
            path.name,
            dates=_is_date(rows),
            once=True,
            notes=[*_notes(archive), *assumed],
            members={name: [*{*members}] for name, members in groups.values() if -1 not in members},
            recognition=_recognition(archive, rows, unowned, [RANK_UNKNOWN] if assumed else []),
        )
        return spans.build(rows, origin).with_(path=path)


def _is_date(rows: pl.DataFrame) -> bool:
    first_ns = rows["start_ns"].min()
    return isinstance(first_ns, int) and EPOCH_NS[0] <= first_ns < EPOCH_NS[1]


def _is_anchor(file: Path) -> bool:
    return beginning(file, len(MAGIC)) == MAGIC


def _anchor(path: Path) -> Path:
    anchors = [file for file in inside(list_files(path, (ANCHOR,)), path) if _is_anchor(file)]
    if not anchors:
        raise NotATrace(f"'{path}' holds no anchor file of OTF2: expected one such as traces.otf2.")
    if len(anchors) > 1:
        names = fmt.series([f"'{file.name}'" for file in anchors[:3]])
        raise UnusableInput(f"'{path}' holds several OTF2 archives ({names}): open one of them.")
    return anchors[0]


def _rank_of_one(facts: dict[str, Any], rank: int, path: Path) -> dict[int, int]:
    """Return the rank of all locations, if they belong to one process.

    Raises:
        UnusableInput: there are several.
    """
    processes = [group for group in facts["groups"] if group[2] == "PROCESS"] or facts["groups"]
    if len(processes) == 1:
        return {group[0]: rank for group in facts["groups"]}
    raise UnusableInput(
        f"'{path.name}' holds {len(processes)} processes, neither of MPI nor with numbers in their "
        "names, so which ranks they are is not known: record MPI, too (scorep --mpp=mpi)."
    )


def _notes(archive: Archive) -> Iterator[Note]:
    if archive.missing:
        names = fmt.series([f"'{number}.evt'" for number in archive.missing[:MAX_FILES_LISTED]])
        hidden = len(archive.missing) - MAX_FILES_LISTED
        more_files = f" and {hidden} more" if hidden > 0 else ""
        yield Note(
            "",
            f"Of the trace, {names}{more_files} are missing: these locations are left out.",
            "unreadable",
        )
    unpaired = archive.facts["unpaired"]
    if unpaired:
        sentence = (
            f"{fmt.count(unpaired, 'event')} that leave a region do not belong to its beginning."
        )
        yield Note("", sentence, "dropped")


def _recognition(
    archive: Archive, rows: pl.DataFrame, unowned: int, gaps: list[Gap]
) -> Recognition:
    counts = archive.facts["counts"]
    read = ", ".join(
        f"{counts[name]:,} {name}" for name in (*("Enter", "Leave"), *CODES) if name in counts
    )
    left_out = {
        f"events {name}": count
        for name, count in counts.items()
        if name not in _READ and name not in _EMPTY
    }
    if unowned:
        left_out["regions of processes of no known rank"] = unowned
    return Recognition(
        format="trace in OTF2 (Score-P)",
        found=(("events", read), ("clock", f"{archive.facts['resolution']:,} ticks a second")),
        left_out=tuple(left_out.items()),
        gaps=(*gaps, *_gaps(archive, rows)),
    )


def _gaps(archive: Archive, rows: pl.DataFrame) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique())
    promised = sum(location[4] for location in archive.facts["locations"])
    total = archive.facts["total"]
    if total < promised or archive.missing:
        yield Gap(
            f"{promised - total:,} of {promised:,} events are not in the files",
            "what happened in them",
            "Record the run again, and let it end by itself.",
        )
    if "step" not in kinds:
        yield Gap(
            "no step is marked",
            "how steps differ, and which rank is slow in them",
            'Put each step into a region of the user: SCOREP_USER_REGION("step", ...).',
            decisive=rows["rank"].n_unique() > 1,
        )
    if rows["rank"].n_unique() > 1 and "reduction" not in kinds:
        yield Gap(
            "no communication is recorded",
            "which rank others wait for",
            "Record MPI, too (scorep --mpp=mpi).",
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no region says a phase of training",
            "which phase ranks compute in",
            "Put phases into regions of the user called forward, backward and optimizer.",
            decisive=False,
        )
    if any(archive.facts["counts"].get(name) for name in _PAUSED):
        yield Gap(
            "recording paused, or wrote its buffer out, while the run went on",
            "what ranks did meanwhile",
            "Set SCOREP_TOTAL_MEMORY to more than the run needs, and record all of it.",
            decisive=False,
        )
