"""Files that other tools wrote, one or several a rank: how they are found, ranked and joined.

A file that does not say its rank is shown as rank 0 of an unknown world, if it is alone; of several the
user says it. A damaged file becomes a note where there are others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import polars as pl

from tracelens.caching import cached_property
from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.links import check_inside, select_files_inside
from tracelens.readers.spans import Origin
from tracelens.schema.gate import refuse_beyond
from tracelens.schema.rules import missing_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.event_stream import Event, EventStream

RANK_UNKNOWN: Final = Gap(
    "the file does not say of which rank it is",
    "what other ranks did, and which one is slow",
    "Give the files of all processes, each with --rank-of FILE=RANK.",
    is_decisive=False,
)
MAX_FILES_NAMED: Final = 3  # files: more are counted in the sentence that asks for ranks [policy]
MAX_SORTS_LISTED: Final = 12  # sorts of events: more are not listed [policy]
MAX_FILES_SNIFFED: Final = 8  # files of a folder: the first may be damaged [policy]


class Damaged(Protocol):
    """A source of events that may be damaged."""

    lost_count: int  # events that cannot be parsed
    is_cut: bool  # its end is missing
    damage_reason: str


@dataclass(eq=False)
class ReadFile:
    """What one file holds: `rows` in words of `spans.build`, and what is in none of them."""

    rows: pl.DataFrame = field(default_factory=pl.DataFrame)  # one a span
    event_counts: Counter[str] = field(default_factory=Counter)  # by what the format calls events
    # Events of no row, by what they are.
    left_out_counts: Counter[str] = field(default_factory=Counter)
    unusable_count: int = 0  # events without a name, or a time that there can be
    lost_count: int = 0  # events that cannot be parsed
    is_cut: bool = False  # the file ends before its list of events does
    damage_reason: str = ""  # why it is cut, or events are lost
    has_rank_column: bool = False  # the file says the rank of each row
    ranks_by_communicator: dict[str, list[int]] = field(default_factory=dict)

    @property
    def event_count(self) -> int:
        """Number of events that were read, rows or not."""
        return self.rows.height + self.unusable_count + sum(self.left_out_counts.values())

    @property
    def process_count(self) -> int:
        """Number of processes that recorded the file, as far as it says so."""
        return 1

    def read_events(self, stream: EventStream, row_count: Callable[[], int]) -> Iterator[Event]:
        """Yield the events of a stream, and count entries that are no objects.

        `row_count` returns how many rows the caller has made of them, which is limited.

        Raises:
            NotATrace: there is no list of events, it is no regular file, or larger than it may be.
        """
        for entries in stream.read_pieces():
            for entry in entries:
                if isinstance(entry, dict):
                    yield entry
                else:
                    self.unusable_count += 1
            refuse_beyond("rows", row_count())
        self.copy_damage(stream)

    def copy_damage(self, source: Damaged) -> None:
        """Take what could not be read of a source that was read to its end."""
        self.lost_count, self.is_cut = source.lost_count, source.is_cut
        self.damage_reason = source.damage_reason


Content = TypeVar("Content", bound=ReadFile)


@dataclass(frozen=True, eq=False)
class FileSet(Generic[Content]):
    """The files of a run."""

    file_by_name: Mapping[str, Content]
    rank_by_file: Mapping[str, int]  # of those files that do not say their rank, by name

    @cached_property
    def rows(self) -> pl.DataFrame:
        """Rows of all files."""
        return pl.concat((file.rows for file in self.file_by_name.values()), how="diagonal")

    @cached_property
    def kinds(self) -> set[str]:
        """Kinds of all rows."""
        has_rows = "kind" in self.rows.columns
        return set(self.rows["kind"].unique().cast(pl.String)) if has_rows else set()


class FilesReader(Generic[Content]):
    """Base of readers of files that other tools wrote.

    A subclass says what it reads by `name`, and in sentences on a run by `format`, if that is another
    word; `suffixes` are ends of the names of files that are looked for in a folder, the surest first.
    Without any, only single files are read. `why_no_rank` is why several files need ranks from the
    user, `advice_if_cut` is how to get a whole file.
    """

    name: str = ""
    format: str = ""
    suffixes: tuple[str, ...] = ()
    why_no_rank: str = ""
    advice_if_cut: str = ""
    has_one_file_per_rank: bool = False

    def is_format(self, file: Path, /) -> bool:
        """Return True if a file is of the format, by its begin."""
        raise NotImplementedError

    def read_file(self, file: Path, /) -> Content:
        """Read one file.

        Raises:
            NotATrace: it is not of the format, damaged, or larger than it may be.
            MissingExtra: the library for it is not installed.
            OSError: it cannot be read.
        """
        raise NotImplementedError

    def rank_processes(
        self, file_by_name: Mapping[str, Content], given_ranks: Mapping[str, int], /
    ) -> None:
        """Give the rows of files with several processes their ranks, as files and user say them."""

    def list_facts(self, run: FileSet[Content]) -> Iterable[tuple[str, str]]:  # noqa: ARG002
        """Return facts on a run that its trace does not show, as name and value."""
        return ()

    def list_severe_gaps(self, run: FileSet[Content]) -> Iterable[Gap]:  # noqa: ARG002
        """Return gaps that weigh more than a rank that is not known."""
        return ()

    def list_gaps(self, run: FileSet[Content]) -> Iterable[Gap]:  # noqa: ARG002
        """Return the gaps of a run: facts that its files do not hold."""
        return ()

    def complete_trace(self, trace: Trace, run: FileSet[Content]) -> Trace:  # noqa: ARG002
        """Add to a trace what its rows do not hold."""
        return trace

    def sniff(self, path: Path) -> bool:
        """Return True if a file, or one of the first of a folder, is of the format."""
        files = list_files(path, self.suffixes)
        if path.is_dir():
            files = [f for suffix in self.suffixes for f in files if f.name.endswith(suffix)]
        return any(map(self.is_format, select_files_inside(files[:MAX_FILES_SNIFFED], path)))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read a file, or all files of a folder, as `Reader.read` says."""
        files = list_files(path, self.suffixes)
        file_by_name, notes = read_each(path, files, self.read_file, options)
        return self.join(path, file_by_name, notes, options.rank_of)

    def join(
        self,
        path: Path,
        file_by_name: Mapping[str, Content],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the files of a run into a trace; `given_ranks` are those that the user gives, by name."""
        self.rank_processes(file_by_name, given_ranks)
        rank_by_file = assign_ranks(file_by_name, given_ranks, self.why_no_rank)
        if self.has_one_file_per_rank:
            check_one_file_per_rank(rank_by_file)
        run = FileSet(file_by_name, rank_by_file)
        gaps = [
            *find_gap_of_cut_files(file_by_name, self.advice_if_cut),
            *self.list_severe_gaps(run),
            *find_rank_gap(file_by_name, given_ranks),
            *self.list_gaps(run),
        ]
        recognition = recognize(self.format or self.name, file_by_name, gaps, self.list_facts(run))
        return self.complete_trace(
            join_files(path, file_by_name, rank_by_file, notes, recognition), run
        )


def list_files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return a file, or the files of a folder whose names end in one of `suffixes`, by name."""
    if not path.is_dir():
        return [path]
    return sorted(
        entry for entry in path.iterdir() if entry.name.endswith(suffixes) and entry.is_file()
    )


def read_each(
    path: Path, files: Sequence[Path], read_file: Callable[[Path], Content], options: Reading
) -> tuple[dict[str, Content], list[Note]]:
    """Read files of a trace by `read_file`; return contents by name, and notes on unreadable files.

    Raises:
        NotATrace: no file can be read.
    """
    file_by_name: dict[str, Content] = {}
    notes = []
    for done_count, file in enumerate(files):
        if options.progress:
            options.progress(done_count, len(files))
        try:
            check_inside(file, path)
            file_by_name[file.name] = read_file(file)
        except (NotATrace, OSError) as error:
            sentence = f"'{file.name}' cannot be read: {error}."
            if len(files) == 1:
                raise NotATrace(sentence) from error
            notes.append(Note(file.name, sentence, "unreadable"))
    if not file_by_name:
        raise NotATrace(notes[0].sentence if notes else f"'{path}' holds no such file.")
    return file_by_name, notes


def join_files(
    path: Path,
    file_by_name: Mapping[str, ReadFile],
    rank_by_file: Mapping[str, int],
    notes: Sequence[Note],
    recognition: Recognition,
) -> Trace:
    """Return the trace of all files' spans; `rank_by_file` are of those files that do not say theirs.

    Raises:
        EmptyTrace: there is no row.
    """
    tables: list[pl.DataFrame] = []
    ranks_by_communicator: dict[str, list[int]] = {}
    for name, file in file_by_name.items():
        rank = pl.col("rank") if file.has_rank_column else pl.lit(rank_by_file[name], pl.Int32)
        tables.append(file.rows.with_columns(rank=rank, file=pl.lit(name)))
        ranks_by_communicator |= file.ranks_by_communicator
    rows = pl.concat(tables, how="diagonal")  # the column stands elsewhere where a file has it
    if rows.is_empty():
        raise EmptyTrace(f"'{path}', a {recognition.format}, holds no event that lasts.")
    unusable_count = sum(file.unusable_count for file in file_by_name.values())
    origin = Origin(
        name=f"'{path.name}'",
        file=path.name,
        has_no_repeats=True,
        unusable_by_reason={missing_reason("start_ns"): unusable_count} if unusable_count else {},
        notes=[
            *notes,
            *(note for name, file in file_by_name.items() for note in _note_damage(name, file)),
            *(note_assumed_rank(name) for name in file_by_name if RANK_UNKNOWN in recognition.gaps),
        ],
        ranks_by_communicator=ranks_by_communicator,
        recognition=recognition,
    )
    return spans.build(rows, origin).with_(path=path)


def _note_damage(name: str, file: ReadFile) -> Iterator[Note]:
    """Note that a file was cut off, and that events of it cannot be read, if so."""
    if file.is_cut:
        events_text = f"the {file.event_count:,} events before are read"
        yield Note(
            name, f"'{name}' was cut off ({file.damage_reason}): {events_text}.", "truncated"
        )
    if file.lost_count:
        reason = f" ({file.damage_reason})" if file.damage_reason and not file.is_cut else ""
        sentence = f"Of '{name}', {fmt.count(file.lost_count, 'event')} cannot be read{reason}."
        yield Note(name, sentence, "dropped")


def recognize(
    format_name: str,
    file_by_name: Mapping[str, ReadFile],
    gaps: Iterable[Gap],
    facts: Iterable[tuple[str, str]],
) -> Recognition:
    """Describe the content of files: events by sort, `facts` (names, values), what has no row, gaps."""
    event_counts, left_out_counts = Counter[str](), Counter[str]()
    for file in file_by_name.values():
        event_counts += file.event_counts
        left_out_counts += file.left_out_counts
    listed_sorts = ", ".join(
        f"{count:,} {sort or 'without a category'}"
        for sort, count in event_counts.most_common(MAX_SORTS_LISTED)
    )
    return Recognition(
        format=format_name,
        facts=(("events", f"{sum(event_counts.values()):,}: {listed_sorts}"), *facts),
        left_out=tuple(left_out_counts.items()),
        gaps=tuple(gaps),
    )


def assign_ranks(
    file_by_name: Mapping[str, ReadFile], given_ranks: Mapping[str, int], why_no_rank: str
) -> dict[str, int]:
    """Return the rank of each file that does not say it, by name; a process alone may be rank 0.

    Raises:
        UnusableInput: a rank is not known; `why_no_rank` says what is special about such files.
    """
    files_without_rank = [name for name, file in file_by_name.items() if not file.has_rank_column]
    unknown_files = [name for name in files_without_rank if name not in given_ranks]
    is_alone = [file.process_count <= 1 for file in file_by_name.values()] == [True]
    if unknown_files and not is_alone:
        listed = fmt.join_words([f"'{name}'" for name in unknown_files[:MAX_FILES_NAMED]])
        unlisted_count = len(unknown_files) - MAX_FILES_NAMED
        unlisted_text = f" and {unlisted_count} more" if unlisted_count > 0 else ""
        raise UnusableInput(
            f"{why_no_rank}: say of which rank {listed}{unlisted_text} "
            f"{'is' if len(unknown_files) == 1 else 'are'} with --rank-of {unknown_files[0]}=RANK."
        )
    return {name: given_ranks.get(name, 0) for name in files_without_rank}


def check_one_file_per_rank(rank_by_file: Mapping[str, int]) -> None:
    """Refuse two files of one rank.

    Raises:
        UnusableInput: two are.
    """
    file_by_rank: dict[int, str] = {}
    for file, rank in rank_by_file.items():
        if rank in file_by_rank:
            raise UnusableInput(
                f"'{file_by_rank[rank]}' and '{file}' are both said to be of rank {rank}: a rank has "
                "one file."
            )
        file_by_rank[rank] = file


def find_rank_gap(
    file_by_name: Mapping[str, ReadFile], given_ranks: Mapping[str, int]
) -> Iterator[Gap]:
    """Yield that the rank of a file is not known, if neither the file nor the user says it."""
    files_without_rank = {name for name, file in file_by_name.items() if not file.has_rank_column}
    if files_without_rank - given_ranks.keys():
        yield RANK_UNKNOWN


def find_gap_of_cut_files(file_by_name: Mapping[str, ReadFile], advice: str) -> Iterator[Gap]:
    """Yield what is not known of files that end before their events do; nothing without an advice."""
    cut_files = [name for name, file in file_by_name.items() if file.is_cut]
    if cut_files and advice:
        yield Gap(
            f"{fmt.join_words(cut_files)} {'was' if len(cut_files) == 1 else 'were'} cut off",
            "what happened after the last whole event",
            advice,
        )


def note_assumed_rank(file: str, reason: str = "") -> Note:
    """Note that a file which says no rank, for a reason, is shown as rank 0."""
    reason_in_brackets = f" ({reason})" if reason else ""
    return Note(
        file,
        f"'{file}' does not say of which rank it is{reason_in_brackets}: it is shown as rank 0 of an "
        f"unknown world; --rank-of {file}=RANK says another.",
        "assumed",
    )


def note_ranks_of_devices(file: str, process: str) -> Note:
    """Note that processes of a file are numbered by their devices."""
    return Note(
        file,
        f"The processes of '{file}' do not say which ranks they are: each is the rank with the number "
        f"of its device; --rank-of {file}:{process}=RANK says another.",
        "assumed",
    )


def find_gaps_of_python_calls(kinds: Collection[str]) -> Iterator[Gap]:
    """Yield what calls of functions of Python do not say, whose rows are of some kinds."""
    if "step" not in kinds:
        yield Gap(
            "no function is called as a step is",
            "where steps begin, but by the updates that come back",
            "Put a step into a function called train_step.",
            is_decisive="update" not in kinds,
        )
    if not {"forward", "backprop", "update"}.intersection(kinds):
        yield Gap(
            "no function is known to be a phase of training",
            "what ranks did",
            "Name functions forward, backward and train_step, or record with 'tracelens record'.",
        )
    if "reduction" not in kinds:
        yield Gap(
            "no function is known to communicate",
            "which rank others wait for",
            "Record the run with 'tracelens record', or profile it with torch.profiler.",
            hides_waits=True,
        )
    yield Gap(
        "what runs beside Python (kernels of devices, threads of libraries) is not recorded",
        "what devices did, and when communication was in flight",
        "Profile with torch.profiler, or record with 'tracelens record'.",
        is_decisive=False,
    )
