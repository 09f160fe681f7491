"""The reader for Nsight Systems' SQLite: which rank each process is, and what cannot be concluded."""

from __future__ import annotations

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
from tracelens.readers.links import inside
from tracelens.readers.nsight.database import MAGIC, open_database
from tracelens.readers.nsight.rows import STREAMS_OF_A_DEVICE, Profile, profile_of
from tracelens.readers.processes import UNOWNED, ask_for_ranks, given_by_process
from tracelens.readers.soundness import (
    drop_repeated_files,
    gaps_of_records,
    keep_common_steps,
    notes_of_records,
)
from tracelens.readers.spans import Origin
from tracelens.schema.gate import beginning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.soundness import LostKernels

__all__ = ["SUFFIXES", "NsightReader"]

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
        return any(map(_is_profile, inside(list_files(path, SUFFIXES), path)[:1]))

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            NotATrace: no file is whole.
            EmptyTrace: nothing that lasts is in them.
            UnusableInput: of a process it is not known which rank it is, or two are the same one.
        """
        profiles, notes = _profiles(path, how)
        profiles, repeated = drop_repeated_files(profiles)
        notes += repeated
        owners = _owners(profiles, how.rank_of, notes)
        rows = _rows(profiles, owners)
        unowned = rows["rank"].null_count()
        lost = _lost_kernels(profiles, owners)
        rows, left_out = _sound_steps(rows.drop_nulls("rank"), profiles, owners, lost)
        notes += left_out
        if rows.is_empty():
            raise EmptyTrace(
                f"'{path}' holds no kernel, no range of NVTX and no call of MPI of a rank: trace them "
                "with 'nsys profile --trace=cuda,nvtx,mpi'."
            )
        unusable = sum(profile.unusable for profile in profiles.values())
        if unusable:
            sentence = f"{fmt.count(unusable, 'row')} without a begin or an end are left out."
            notes.append(Note("", sentence, "dropped"))
        origin = Origin(
            f"'{path.name}'",
            path.name,
            dates=all(profile.begin_ns for profile in profiles.values()),
            once=True,
            unusable={"no begin or no end": unusable},
            notes=notes,
            recognition=_recognition(
                profiles,
                rows,
                unowned,
                lost.values(),
                is_assumed=len(owners) == 1 and "assumed" in {note.kind for note in notes},
            ),
        )
        return spans.build(rows.drop("issued_ns"), origin).with_(path=path)


def _lost_kernels(
    profiles: Mapping[str, Profile], owners: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], LostKernels]:
    """Return launches without a kernel of each process that is a rank."""
    return {
        (file, process): lost
        for file, profile in profiles.items()
        for process, lost in profile.lost_kernels.items()
        if (file, process) in owners
    }


def _sound_steps(
    rows: pl.DataFrame,
    profiles: Mapping[str, Profile],
    owners: Mapping[tuple[str, int], int],
    lost: Mapping[tuple[str, int], LostKernels],
) -> tuple[pl.DataFrame, list[Note]]:
    """Leave out steps that lost their kernels; note that, and records that cannot be."""
    notes = [
        note
        for file, profile in profiles.items()
        for note in notes_of_records(
            file,
            profile.impossible,
            [lost_kernels for (of, _), lost_kernels in lost.items() if of == file],
        )
    ]
    lossy = [
        (owners[owner], step) for owner, lost_kernels in lost.items() for step in lost_kernels.steps
    ]
    if not lossy:
        return rows, notes
    rows, left_out = keep_common_steps(rows, lossy)
    return rows, [*notes, *left_out]


def _is_profile(file: Path) -> bool:
    if beginning(file, len(MAGIC)) != MAGIC:
        return False
    try:
        with open_database(file) as database:
            return sum(name in database.columns for name in _MARKS) >= _FEWEST_MARKS
    except NotATrace:
        return True  # which reading says, in a sentence


def _profiles(path: Path, how: Reading) -> tuple[dict[str, Profile], list[Note]]:
    files = list_files(path, SUFFIXES)
    profiles, notes = {}, []
    for done, file in enumerate(files, 1):
        try:
            with open_database(file, path) as database:
                profiles[file.name] = profile_of(database)
        except NotATrace as error:
            if len(files) == 1:
                raise
            notes.append(Note(file.name, str(error), "unreadable"))
        if how.progress:
            how.progress(done, len(files))
    if not profiles:
        raise NotATrace(f"None of {len(files)} files is a whole SQLite file: {notes[0].sentence}")
    return profiles, notes


def _owners(
    profiles: Mapping[str, Profile], given: Mapping[str, int], notes: list[Note]
) -> dict[tuple[str, int], int]:
    """Return the rank of each process that recorded something, by file and number; note what is assumed.

    Raises:
        UnusableInput: it is not known, or not one of a kind.
    """
    owners = {
        (file, process): rank
        for file, profile in profiles.items()
        for process, rank in _ranks_in(
            file, profile, given, notes, alone=len(profiles) == 1
        ).items()
    }
    file_of_rank: dict[int, str] = {}
    for (file, _), rank in owners.items():
        earlier_file = file_of_rank.setdefault(rank, file)
        if earlier_file != file:
            raise UnusableInput(
                f"'{earlier_file}' and '{file}' both hold rank {rank}: leave one out, or say of which "
                f"rank it is with --rank-of {file}=RANK."
            )
    return owners


def _ranks_in(
    file: str, profile: Profile, given: Mapping[str, int], notes: list[Note], *, alone: bool
) -> dict[int, int]:
    """Return the rank of each process of a file: as it says, the user, or its devices do.

    Raises:
        UnusableInput: none of them says it.
    """
    present = [int(process) for process in profile.rows["process"].drop_nulls().unique().sort()]
    by_pid = {str(_pid(process)): process for process in present}
    by_process = given_by_process(file, list(by_pid), given)
    if file in given and not by_process:
        return dict.fromkeys(present, given[file])
    ranks = {process: profile.ranks[process] for process in present if process in profile.ranks}
    ranks |= {by_pid[pid]: rank for pid, rank in by_process.items()}
    if ranks or not present:
        return ranks
    if len(present) == 1 and alone:
        notes.append(note_assumed_rank(file, "no MPI rank is in it"))
        return {present[0]: 0}
    devices = _devices(profile.rows)
    if len(devices) > 1:
        notes.append(note_ranks_of_devices(file, str(_pid(min(devices)))))
        return devices
    raise _ask_rank(file, {pid: profile.processes.get(by_pid[pid], "") for pid in by_pid})


def _pid(process: Number) -> Number:
    """Return the number that the system gave a process, which Nsight's own number holds."""
    return process // (1 << 24) % (1 << 24)


def _devices(rows: pl.DataFrame) -> dict[int, int]:
    """Return the device of each process that used one, where no two used the same; else none."""
    used = rows.drop_nulls(["process", "stream"]).select(
        "process", device=pl.col("stream") // STREAMS_OF_A_DEVICE
    )
    pairs = used.unique().rows()
    devices = dict(pairs)
    return devices if len(devices) == len(pairs) == len({*devices.values()}) else {}


def _ask_rank(file: str, names: Mapping[str, str]) -> UnusableInput:
    """Return the question which ranks processes are; `names` are by the system's number."""
    if len(names) > 1:
        return ask_for_ranks(file, names)
    (name,) = names.values()
    return UnusableInput(
        f"'{file}' does not say of which rank it is (no MPI rank is in it): say so with "
        f"--rank-of {file}=0, with the rank of '{name or '?'}'."
    )


def _rows(profiles: Mapping[str, Profile], owners: Mapping[tuple[str, int], int]) -> pl.DataFrame:
    """Join the rows of all files, each process with its rank or null, each file with a clock."""
    frames = []
    for file, profile in profiles.items():
        ranks = {process: rank for (of, process), rank in owners.items() if of == file}
        rank = pl.col("process").replace_strict(ranks, default=None, return_dtype=pl.Int32)
        begin_ns = profile.begin_ns or 0
        frames.append(
            profile.rows.with_columns(
                rank=rank,
                start_ns=pl.col("start_ns") + begin_ns,
                end_ns=pl.col("end_ns") + begin_ns,
                pid=_pid(pl.col("process")),
                host=pl.lit(profile.host or None, pl.String),
                clock=pl.lit(file),
                file=pl.lit(file),
            )
        )
    return pl.concat(frames).drop("process")


def _recognition(
    profiles: Mapping[str, Profile],
    rows: pl.DataFrame,
    unowned: int,
    lost: Iterable[LostKernels],
    *,
    is_assumed: bool,
) -> Recognition:
    counts: dict[str, int] = {}
    left_out = {UNOWNED: unowned} if unowned else {}
    for profile in profiles.values():
        for total, part in ((counts, profile.counts), (left_out, profile.left_out)):
            for what, count in part.items():
                total[what] = total.get(what, 0) + count
    listed = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return Recognition(
        format="profile by Nsight Systems",
        found=(("events", listed),),
        left_out=tuple(left_out.items()),
        gaps=(
            *([RANK_UNKNOWN] if is_assumed else []),
            *gaps_of_records(
                (sentence for profile in profiles.values() for sentence in profile.impossible),
                lost,
                "Nsight Systems",
            ),
            *_gaps(rows),
        ),
    )


def _gaps(rows: pl.DataFrame) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique())
    if "step" not in kinds:
        yield Gap(
            "no step is marked",
            "how steps differ, and which rank is slow in them",
            "Put each step into a range of NVTX called 'step N'.",
            decisive=rows["rank"].n_unique() > 1,
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no range says a phase of training",
            "which phase ranks compute in",
            "Put phases into ranges of NVTX called forward, backward and optimizer.",
            decisive=False,
        )
    if "reduction" in kinds:
        yield Gap(
            "Nsight Systems does not say which calls of a collective belong to each other",
            "which rank others wait for, where their number of calls differs",
            "Profile the same steps on all ranks.",
            decisive=False,
        )
