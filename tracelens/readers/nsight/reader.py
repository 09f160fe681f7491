"""The reader for Nsight Systems' SQLite: which rank each process is, and what cannot be concluded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

from tracelens.errors import EmptyTrace, NotATrace, UnusableInput
from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap, Recognition
from tracelens.readers import spans
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.files import (
    RANK_UNKNOWN,
    list_files,
    note_assumed_rank,
    note_ranks_of_devices,
)
from tracelens.readers.links import select_files_inside
from tracelens.readers.nsight.database import MAGIC, open_database
from tracelens.readers.nsight.rows import STREAMS_OF_A_DEVICE, Profile, read_profile
from tracelens.readers.processes import UNOWNED, rank_question, select_given_ranks
from tracelens.readers.soundness import (
    drop_repeated_files,
    find_record_gaps,
    keep_common_steps,
    note_dropped_records,
)
from tracelens.readers.spans import Origin
from tracelens.schema.gate import read_beginning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.soundness import LostKernels

SUFFIXES: Final = (".sqlite", ".sqlite3", ".db")
_MARKS: Final = ("StringIds", "TARGET_INFO_SYSTEM_ENV", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")
_FEWEST_MARKS: Final = 2  # tables that a file of Nsight Systems has

Number = TypeVar("Number", int, pl.Expr)


@dataclass(frozen=True)
class NsightReader:
    """Reads a file that `nsys export --type sqlite` wrote, or a folder of them."""

    name: str = "Nsight Systems export (SQLite)"

    def sniff(self, path: Path) -> bool:
        """Return True if a file, or the first of a folder, is a database of Nsight Systems."""
        return any(map(_is_profile, select_files_inside(list_files(path, SUFFIXES), path)[:1]))

    def read(self, path: Path, options: Reading = SIMPLY) -> Trace:
        """Read all files, as `Reader.read` says."""
        profiles, notes = _read_profiles(path, options)
        profiles, repeat_notes = drop_repeated_files(profiles)
        notes += repeat_notes
        ranks = _find_ranks(profiles, options.rank_of, notes)
        spans_of_run = _join_spans(profiles, ranks)
        unowned_count = spans_of_run["rank"].null_count()
        lost_kernels = {
            (file, process): lost
            for file, profile in profiles.items()
            for process, lost in profile.lost_kernels_by_process.items()
            if (file, process) in ranks
        }
        spans_of_run, step_notes = _keep_sound_steps(
            spans_of_run.drop_nulls("rank"), profiles, ranks, lost_kernels
        )
        notes += step_notes
        if spans_of_run.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no kernel, no range of NVTX and no call of MPI of a rank: trace them "
                "with 'nsys profile --trace=cuda,nvtx,mpi'."
            )
        unusable_count = sum(profile.unusable_count for profile in profiles.values())
        if unusable_count:
            sentence = f"{fmt.count(unusable_count, 'row')} without a begin or an end are left out."
            notes.append(Note(file="", sentence=sentence, kind="dropped"))
        origin = Origin(
            name=f"'{path.name}'",
            file=path.name,
            has_dates=all(profile.time_origin_ns for profile in profiles.values()),
            has_no_repeats=True,
            unusable_by_reason={"no begin or no end": unusable_count},
            notes=notes,
            recognition=_recognize(
                profiles,
                spans_of_run,
                unowned_count,
                lost_kernels.values(),
                is_assumed=len(ranks) == 1 and "assumed" in {note.kind for note in notes},
            ),
        )
        return spans.build(spans_of_run.drop("issued_ns"), origin).with_(path=path)


def _keep_sound_steps(
    spans_of_run: pl.DataFrame,
    profiles: Mapping[str, Profile],
    ranks: Mapping[tuple[str, int], int],
    lost_kernels: Mapping[tuple[str, int], LostKernels],
) -> tuple[pl.DataFrame, list[Note]]:
    """Leave out of all ranks the steps in which a rank lost kernels; note these, and impossible records.

    `profiles` are by file, `ranks` and `lost_kernels` by file and process.
    """
    notes = []
    for file, profile in profiles.items():
        lost_in_file = [lost for (name, _), lost in lost_kernels.items() if name == file]
        notes += note_dropped_records(file, profile.impossible_phrases, lost_in_file)
    lossy_steps = [
        (ranks[key], step) for key, lost in lost_kernels.items() for step in lost.lossy_steps
    ]
    if not lossy_steps:
        return spans_of_run, notes
    spans_of_run, step_notes = keep_common_steps(spans_of_run, lossy_steps)
    return spans_of_run, [*notes, *step_notes]


def _is_profile(file: Path) -> bool:
    """Return True if a file is an SQLite database with tables of Nsight, or damaged."""
    if read_beginning(file, len(MAGIC)) != MAGIC:
        return False
    try:
        with open_database(file) as database:
            return sum(name in database.columns_by_table for name in _MARKS) >= _FEWEST_MARKS
    except NotATrace:
        return True  # which reading says, in a sentence


def _read_profiles(path: Path, options: Reading) -> tuple[dict[str, Profile], list[Note]]:
    """Read files; return the profiles by name, and notes on files that cannot be read."""
    files = list_files(path, SUFFIXES)
    profiles, notes = {}, []
    for done_count, file in enumerate(files, 1):
        try:
            with open_database(file, path) as database:
                profiles[file.name] = read_profile(database)
        except NotATrace as error:
            if len(files) == 1:
                raise
            notes.append(Note(file.name, str(error), "unreadable"))
        if options.progress:
            options.progress(done_count, len(files))
    if not profiles:
        raise NotATrace(f"None of {len(files)} files is a whole SQLite file: {notes[0].sentence}")
    return profiles, notes


def _find_ranks(
    profiles: Mapping[str, Profile], given_ranks: Mapping[str, int], notes: list[Note]
) -> dict[tuple[str, int], int]:
    """Return the rank of each process that recorded something, by file and number; add to `notes`."""
    is_only_file = len(profiles) == 1
    ranks: dict[tuple[str, int], int] = {}
    for file, profile in profiles.items():
        rank_by_process = _find_ranks_in_file(
            file, profile, given_ranks, notes, is_only_file=is_only_file
        )
        ranks |= {(file, process): rank for process, rank in rank_by_process.items()}
    file_by_rank: dict[int, str] = {}
    for (file, _), rank in ranks.items():
        earlier_file = file_by_rank.setdefault(rank, file)
        if earlier_file != file:
            raise UnusableInput(
                f"'{earlier_file}' and '{file}' both hold rank {rank}: leave one out, or say of which "
                f"rank it is with --rank-of {file}=RANK."
            )
    return ranks


def _find_ranks_in_file(
    file: str,
    profile: Profile,
    given_ranks: Mapping[str, int],
    notes: list[Note],
    *,
    is_only_file: bool,
) -> dict[int, int]:
    """Return the rank of each process of a file: as the user says, or the file, or its devices do.

    The only process of the only file may be rank 0. What is assumed is added to `notes`.

    Raises:
        UnusableInput: none of them says it.
    """
    processes = [int(process) for process in profile.rows["process"].drop_nulls().unique().sort()]
    process_by_pid = {str(_to_pid(process)): process for process in processes}
    given_rank_by_pid = select_given_ranks(file, list(process_by_pid), given_ranks)
    if file in given_ranks and not given_rank_by_pid:
        return dict.fromkeys(processes, given_ranks[file])
    stated_ranks = profile.rank_by_process
    ranks = {process: stated_ranks[process] for process in processes if process in stated_ranks}
    ranks |= {process_by_pid[pid]: rank for pid, rank in given_rank_by_pid.items()}
    if ranks or not processes:
        return ranks
    if len(processes) == 1 and is_only_file:
        notes.append(note_assumed_rank(file, "no MPI rank is in it"))
        return {processes[0]: 0}
    device_by_process = _find_devices(profile.rows)
    if len(device_by_process) > 1:
        notes.append(note_ranks_of_devices(file, str(_to_pid(min(device_by_process)))))
        return device_by_process
    names = profile.name_by_process
    raise _rank_question(file, {pid: names.get(p, "") for pid, p in process_by_pid.items()})


def _to_pid(process: Number) -> Number:
    """Return the number that the system gave a process, which Nsight's own number holds."""
    return process // (1 << 24) % (1 << 24)


def _find_devices(spans_of_file: pl.DataFrame) -> dict[int, int]:
    """Return the device of each process that used one, where no two used the same; else none."""
    device = pl.col("stream") // STREAMS_OF_A_DEVICE
    device_spans = spans_of_file.drop_nulls(["process", "stream"])
    pairs = device_spans.select("process", device=device).unique().rows()
    device_by_process = dict(pairs)
    is_one_to_one = len(device_by_process) == len(pairs) == len({*device_by_process.values()})
    return device_by_process if is_one_to_one else {}


def _rank_question(file: str, names: Mapping[str, str]) -> UnusableInput:
    """Return the question which ranks processes are; `names` are by the system's number."""
    if len(names) > 1:
        return rank_question(file, names)
    (name,) = names.values()
    return UnusableInput(
        f"'{file}' does not say of which rank it is (no MPI rank is in it): say so with "
        f"--rank-of {file}=0, with the rank of '{name or '?'}'."
    )


def _join_spans(
    profiles: Mapping[str, Profile], ranks: Mapping[tuple[str, int], int]
) -> pl.DataFrame:
    """Join the spans of all files, each process with its rank or null, each file with a clock.

    `ranks` are by file and process. Times become ns since 1970, where the file says when it began.
    """
    tables = []
    for file, profile in profiles.items():
        rank_by_process = {p: rank for (name, p), rank in ranks.items() if name == file}
        rank = pl.col("process").replace_strict(
            rank_by_process, default=None, return_dtype=pl.Int32
        )
        table = profile.rows.with_columns(
            pl.col("start_ns", "end_ns") + (profile.time_origin_ns or 0),
            rank=rank,
            pid=_to_pid(pl.col("process")),
            host=pl.lit(profile.host or None, pl.String),
            clock=pl.lit(file),
            file=pl.lit(file),
        )
        tables.append(table)
    return pl.concat(tables).drop("process")


def _recognize(
    profiles: Mapping[str, Profile],
    spans_of_run: pl.DataFrame,
    unowned_count: int,
    lost_kernels: Iterable[LostKernels],
    *,
    is_assumed: bool,
) -> Recognition:
    """Summarize what was recognized; `unowned_count` events are of no rank.

    `is_assumed`: the rank of the only process is not known, and assumed to be 0.
    """
    event_counts, left_out_counts = Counter[str](), Counter[str]()
    if unowned_count:
        left_out_counts[UNOWNED] = unowned_count
    for profile in profiles.values():
        event_counts.update(profile.event_counts)
        left_out_counts.update(profile.left_out_counts)
    listed = ", ".join(f"{count:,} {sort}" for sort, count in event_counts.items())
    impossible_phrases = [p for profile in profiles.values() for p in profile.impossible_phrases]
    return Recognition(
        format="profile by Nsight Systems",
        facts=(("events", listed),),
        left_out=tuple(left_out_counts.items()),
        gaps=(
            *([RANK_UNKNOWN] if is_assumed else []),
            *find_record_gaps(impossible_phrases, lost_kernels, profiler="Nsight Systems"),
            *_list_gaps(spans_of_run),
        ),
    )


def _list_gaps(spans_of_run: pl.DataFrame) -> Iterator[Gap]:
    """Yield the gaps in the recorded ranges and collectives."""
    kinds = set(spans_of_run["kind"].unique())
    if "step" not in kinds:
        yield Gap(
            "no step is marked",
            "how steps differ, and which rank is slow in them",
            "Put each step into a range of NVTX called 'step N'.",
            is_decisive=spans_of_run["rank"].n_unique() > 1,
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no range says a phase of training",
            "which phase ranks compute in",
            "Put phases into ranges of NVTX called forward, backward and optimizer.",
            is_decisive=False,
        )
    if "reduction" in kinds:
        yield Gap(
            "Nsight Systems does not say which calls of a collective belong to each other",
            "which rank others wait for, where their number of calls differs",
            "Profile the same steps on all ranks.",
            is_decisive=False,
        )
