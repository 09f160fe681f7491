"""Files of other tools that do not say their rank: which there are, and which rank each is of.

A file alone is shown as rank 0 of an unknown world; of several the user says it. A damaged file becomes
a note where there are others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.links import check_inside, inside
from tracelens.readers.spans import Origin
from tracelens.schema.rules import lacking

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.base import Reading
    from tracelens.readers.event_stream import EventStream

__all__ = [
    "RANK_UNKNOWN",
    "ReadFile",
    "called",
    "cut_off",
    "each_read",
    "joined",
    "note_assumed_rank",
    "note_ranks_of_devices",
    "one_a_rank",
    "python_alone",
    "ranks_given",
    "ranks_unknown",
    "recognized",
    "sniffed",
]

Found = TypeVar("Found")
RANK_UNKNOWN: Final = Gap(
    "the file does not say of which rank it is",
    "what other ranks did, and which one is slow",
    "Give the files of all processes, each with --rank-of FILE=RANK.",
    decisive=False,
)
_SHOWN: Final = 3
_LISTED: Final = 12
_SNIFFED: Final = 8  # files of a folder; the first may be damaged


@dataclass(eq=False)
class ReadFile:
    """What one file holds: `rows` in words of `spans.build`, and what is in none of them.

    `sorts` counts events by what the format calls them, `left_out` those that are no row of ours by what
    they are. `unusable` have no name or no time that there can be, `lost` cannot be parsed. `cut`: the
    file ends before its list of events does, for the reason in `damage`. `says_ranks`: it does, in a
    column `rank` of its rows.
    """

    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    sorts: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unusable: int = 0
    lost: int = 0
    cut: bool = False
    damage: str = ""
    says_ranks: bool = False

    @property
    def events(self) -> int:
        """How many were read, rows or not."""
        return self.rows.height + self.unusable + sum(self.left_out.values())

    def streamed(self, stream: EventStream) -> None:
        """Take from a stream that was read to its end what of it could not be."""
        self.lost, self.cut, self.damage = stream.lost, stream.cut, stream.damage


def called(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return a file, or the files of a folder whose names end so."""
    if not path.is_dir():
        return [path]
    return sorted(
        entry for entry in path.iterdir() if entry.name.endswith(suffixes) and entry.is_file()
    )


def each_read(
    path: Path, files: Sequence[Path], read: Callable[[Path], Found], how: Reading
) -> tuple[dict[str, Found], list[Note]]:
    """Read files of a trace one by one; what cannot be read is noted, where there are others.

    Raises:
        NotATrace: no file can be read.
    """
    found: dict[str, Found] = {}
    notes = []
    for done, file in enumerate(files):
        if how.progress:
            how.progress(done, len(files))
        try:
            check_inside(file, path)
            found[file.name] = read(file)
        except (NotATrace, OSError) as error:
            sentence = f"'{file.name}' cannot be read: {error}."
            if len(files) == 1:
                raise NotATrace(sentence) from error
            notes.append(Note(file.name, sentence, "unreadable"))
    if not found:
        raise NotATrace(notes[0].sentence if notes else f"'{path}' holds no such file.")
    return found, notes


def joined(
    path: Path,
    found: Mapping[str, ReadFile],
    ranks: Mapping[str, int],
    notes: Sequence[Note],
    recognition: Recognition,
    *,
    members: Mapping[str, Sequence[int]] | None = None,
) -> Trace:
    """Return the trace of all files' rows, each with its rank and its file; `members` as of `Origin`.

    Raises:
        EmptyTrace: there is no row.
    """
    parts = [
        file.rows.with_columns(
            pl.col("rank") if file.says_ranks else pl.lit(ranks[name], pl.Int32).alias("rank"),
            file=pl.lit(name),
        )
        for name, file in found.items()
    ]
    rows = pl.concat(parts, how="diagonal")  # the column stands elsewhere where a file has it
    if rows.is_empty():
        raise EmptyTrace(f"'{path}', a {recognition.format}, holds no event that lasts.")
    unusable = sum(file.unusable for file in found.values())
    origin = Origin(
        f"'{path.name}'",
        path.name,
        once=True,
        unusable={lacking("start_ns"): unusable} if unusable else {},
        notes=[
            *notes,
            *(note for name, file in found.items() for note in _damaged(name, file)),
            *(note_assumed_rank(name) for name in found if RANK_UNKNOWN in recognition.gaps),
        ],
        members=members or {},
        recognition=recognition,
    )
    return spans.build(rows, origin).with_(path=path)


def _damaged(name: str, file: ReadFile) -> Iterator[Note]:
    if file.cut:
        sentence = (
            f"'{name}' was cut off ({file.damage}): the {file.events:,} events before are read."
        )
        yield Note(name, sentence, "truncated")
    if file.lost:
        reason = f" ({file.damage})" if file.damage and not file.cut else ""
        sentence = f"Of '{name}', {fmt.count(file.lost, 'event')} cannot be read{reason}."
        yield Note(name, sentence, "dropped")


def recognized(
    form: str, found: Mapping[str, ReadFile], gaps: Iterator[Gap], *facts: tuple[str, str]
) -> Recognition:
    """Return what was made of files: events by sort, facts, what is in no row, what is missing."""
    sorts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for file in found.values():
        sorts += file.sorts
        left_out += file.left_out
    listed = ", ".join(
        f"{count:,} {sort or 'without a category'}" for sort, count in sorts.most_common(_LISTED)
    )
    return Recognition(
        format=form,
        found=(("events", f"{sum(sorts.values()):,}: {listed}"), *facts),
        left_out=tuple(left_out.items()),
        gaps=tuple(gaps),
    )


def ranks_given(
    found: Mapping[str, ReadFile], given: Mapping[str, int], why: str, *, alone: bool
) -> dict[str, int]:
    """Return the rank of each file that does not say it, by name.

    `alone`: a file that the user does not name either is rank 0, if there is no other.

    Raises:
        UnusableInput: a rank is not known; `why` says what is special about such files.
    """
    asked = [name for name, file in found.items() if not file.says_ranks]
    silent = [name for name in asked if name not in given]
    if silent and not (alone and len(found) == 1):
        shown = fmt.series([f"'{name}'" for name in silent[:_SHOWN]])
        more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        raise UnusableInput(
            f"{why}: say of which rank {shown}{more} {'is' if len(silent) == 1 else 'are'} with "
            f"--rank-of {silent[0]}=RANK."
        )
    return {name: given.get(name, 0) for name in asked}


def one_a_rank(ranks: Mapping[str, int]) -> Mapping[str, int]:
    """Return ranks by file, of which no two are equal.

    Raises:
        UnusableInput: two are.
    """
    places: dict[int, str] = {}
    for file, rank in ranks.items():
        if rank in places:
            raise UnusableInput(
                f"'{places[rank]}' and '{file}' are both said to be of rank {rank}: a rank has one file."
            )
        places[rank] = file
    return ranks


def ranks_unknown(found: Mapping[str, ReadFile], given: Mapping[str, int]) -> Iterator[Gap]:
    """Yield what is not known where neither a file nor the user says its rank."""
    if any(not file.says_ranks and name not in given for name, file in found.items()):
        yield RANK_UNKNOWN


def note_assumed_rank(file: str, reason: str = "") -> Note:
    """Return that a file which says no rank, for a reason, is shown as rank 0."""
    why = f" ({reason})" if reason else ""
    return Note(
        file,
        f"'{file}' does not say of which rank it is{why}: it is shown as rank 0 of an unknown world; "
        f"--rank-of {file}=RANK says another.",
        "assumed",
    )


def note_ranks_of_devices(file: str, process: str) -> Note:
    """Return that processes of a file are numbered by their devices."""
    return Note(
        file,
        f"The processes of '{file}' do not say which ranks they are: each is the rank with the number "
        f"of its device; --rank-of {file}:{process}=RANK says another.",
        "assumed",
    )


def cut_off(found: Mapping[str, ReadFile], advice: str) -> Iterator[Gap]:
    """Yield what is not known of files that end before their events do."""
    cut = [name for name, file in found.items() if file.cut]
    if cut:
        yield Gap(
            f"{fmt.series(cut)} {'was' if len(cut) == 1 else 'were'} cut off",
            "what happened after the last whole event",
            advice,
        )


def sniffed(path: Path, suffixes: tuple[str, ...], test: Callable[[Path], bool]) -> bool:
    """Return whether a file, or one of the first of a folder whose names end so, is of a format."""
    return any(map(test, inside(called(path, suffixes)[:_SNIFFED], path)))


def python_alone(kinds: Collection[str]) -> Iterator[Gap]:
    """Yield what calls of functions of Python do not say, whose rows are of some kinds."""
    if "step" not in kinds:
        yield Gap(
            "no function is called as a step is",
            "where steps begin, but by the updates that come back",
            "Put a step into a function called train_step.",
            decisive="update" not in kinds,
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
        decisive=False,
    )
