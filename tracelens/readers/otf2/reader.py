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
from tracelens.readers.links import select_files_inside
from tracelens.readers.otf2.archive import ANCHOR, MAGIC, Archive, read_archive
from tracelens.readers.otf2.rows import DATES_NS, build_spans, describe_communicators, find_ranks
from tracelens.readers.otf2.unpack import CODES
from tracelens.readers.spans import Origin
from tracelens.schema.gate import read_beginning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from tracelens.model.trace import Trace

_TYPES_READ: Final = frozenset((*CODES, "Enter", "Leave"))
_EMPTY_TYPES: Final = frozenset(("ProgramBegin", "ProgramEnd", "MpiCollectiveBegin"))  # no facts
MAX_FILES_LISTED: Final = 5  # files in a sentence: more are counted [policy]
_PAUSED: Final = ("MeasurementOnOff", "BufferFlush")


class Otf2Reader:
    """Reads an archive of OTF2: the folder in which Score-P put it, or its anchor file."""

    name = "Score-P trace (OTF2)"

    def sniff(self, path: Path) -> bool:
        """Return True if a file is an anchor, or one file of a folder."""
        return any(map(_is_anchor, select_files_inside(list_files(path, (ANCHOR,)), path)))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read the archive, as `Reader.read` says."""
        anchor = _find_anchor(path)
        archive = read_archive(anchor)
        rank_by_group = find_ranks(archive.definitions)
        assumed_notes: list[Note] = []
        if not rank_by_group:
            given_rank = options.rank_of.get(path.name, options.rank_of.get(anchor.name))
            if given_rank is None:
                assumed_notes = [note_assumed_rank(path.name, "no MPI is in it")]
            rank_by_group = _rank_only_process(archive.definitions, given_rank or 0, path)
        communicators = describe_communicators(archive.definitions, rank_by_group)
        spans_of_run = build_spans(archive, rank_by_group, communicators)
        unowned_count = spans_of_run["rank"].null_count()
        spans_of_run = spans_of_run.drop_nulls("rank")
        if spans_of_run.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no region of a rank: record with SCOREP_ENABLE_TRACING=true."
            )
        ranks_by_communicator = {
            name: [*{*ranks}] for name, ranks in communicators.values() if -1 not in ranks
        }
        origin = Origin(
            name=f"'{path.name}'",
            file=path.name,
            has_dates=_has_dates(spans_of_run),
            has_no_repeats=True,
            notes=[*_list_notes(archive), *assumed_notes],
            ranks_by_communicator=ranks_by_communicator,
            recognition=_recognize(
                archive, spans_of_run, unowned_count, [RANK_UNKNOWN] if assumed_notes else []
            ),
        )
        return spans.build(spans_of_run, origin).with_(path=path)


def _has_dates(spans_of_run: pl.DataFrame) -> bool:
    first_ns = spans_of_run["start_ns"].min()
    return isinstance(first_ns, int) and first_ns in DATES_NS


def _is_anchor(file: Path) -> bool:
    return read_beginning(file, len(MAGIC)) == MAGIC


def _find_anchor(path: Path) -> Path:
    """Return the one anchor file of an archive, given by itself or by its folder."""
    anchors = [
        file for file in select_files_inside(list_files(path, (ANCHOR,)), path) if _is_anchor(file)
    ]
    if not anchors:
        raise NotATrace(f"'{path}' holds no anchor file of OTF2: expected one such as traces.otf2.")
    if len(anchors) > 1:
        names = fmt.join_words([f"'{file.name}'" for file in anchors[:3]])
        raise UnusableInput(f"'{path}' holds several OTF2 archives ({names}): open one of them.")
    return anchors[0]


def _rank_only_process(definitions: dict[str, Any], rank: int, path: Path) -> dict[int, int]:
    """Return `rank` for each location group, by its number, if they belong to one process."""
    groups = definitions["location_groups"]  # number, name, sort, host and maker of each
    process_count = sum(sort == "PROCESS" for _, _, sort, _, _ in groups) or len(groups)
    if process_count == 1:
        return {number: rank for number, *_ in groups}
    raise UnusableInput(
        f"'{path.name}' holds {process_count} processes, neither of MPI nor with numbers in their "
        "names, so which ranks they are is not known: record MPI, too (scorep --mpp=mpi)."
    )


def _list_notes(archive: Archive) -> Iterator[Note]:
    """Note which locations are missing, and how many ends of regions have no begin."""
    if archive.missing_locations:
        names = fmt.join_words(
            [f"'{number}.evt'" for number in archive.missing_locations[:MAX_FILES_LISTED]]
        )
        unlisted_count = len(archive.missing_locations) - MAX_FILES_LISTED
        more_files = f" and {unlisted_count} more" if unlisted_count > 0 else ""
        sentence = f"Of the trace, {names}{more_files} are missing: these locations are left out."
        yield Note(file="", sentence=sentence, kind="unreadable")
    unpaired_count = archive.definitions["unpaired_count"]
    if unpaired_count:
        count_text = fmt.count(unpaired_count, "event")
        sentence = f"{count_text} that leave a region do not belong to its beginning."
        yield Note(file="", sentence=sentence, kind="dropped")


def _recognize(
    archive: Archive, spans_of_run: pl.DataFrame, unowned_count: int, gaps: list[Gap]
) -> Recognition:
    """Summarize what was recognized; `unowned_count` regions are of processes of no known rank."""
    counts = archive.definitions["count_by_event_type"]
    read_types = [name for name in ("Enter", "Leave", *CODES) if name in counts]
    listed = ", ".join(f"{counts[name]:,} {name}" for name in read_types)
    unread_types = [name for name in counts if name not in _TYPES_READ and name not in _EMPTY_TYPES]
    left_out_counts = {f"events {name}": counts[name] for name in unread_types}
    if unowned_count:
        left_out_counts["regions of processes of no known rank"] = unowned_count
    return Recognition(
        format="trace in OTF2 (Score-P)",
        facts=(
            ("events", listed),
            ("clock", f"{archive.definitions['resolution']:,} ticks a second"),
        ),
        left_out=tuple(left_out_counts.items()),
        gaps=(*gaps, *_list_gaps(archive, spans_of_run)),
    )


def _list_gaps(archive: Archive, spans_of_run: pl.DataFrame) -> Iterator[Gap]:
    """Yield what the trace does not hold, and what is therefore not known."""
    kinds = set(spans_of_run["kind"].unique())
    recorded_count = sum(event_count for *_, event_count in archive.definitions["locations"])
    read_count = archive.definitions["event_count"]
    if read_count < recorded_count or archive.missing_locations:
        yield Gap(
            f"{recorded_count - read_count:,} of {recorded_count:,} events are not in the files",
            "what happened in them",
            "Record the run again, and let it end by itself.",
        )
    if "step" not in kinds:
        yield Gap(
            "no step is marked",
            "how steps differ, and which rank is slow in them",
            'Put each step into a region of the user: SCOREP_USER_REGION("step", ...).',
            is_decisive=spans_of_run["rank"].n_unique() > 1,
        )
    if spans_of_run["rank"].n_unique() > 1 and "reduction" not in kinds:
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
            is_decisive=False,
        )
    if any(archive.definitions["count_by_event_type"].get(name) for name in _PAUSED):
        yield Gap(
            "recording paused, or wrote its buffer out, while the run went on",
            "what ranks did meanwhile",
            "Set SCOREP_TOTAL_MEMORY to more than the run needs, and record all of it.",
            is_decisive=False,
        )
