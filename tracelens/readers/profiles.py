"""Base of readers of profiles of devices, one file a rank, whose records are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import polars as pl

from tracelens.readers.files import (
    FileSet,
    FilesReader,
    ReadFile,
    assign_ranks,
    check_one_file_per_rank,
)
from tracelens.readers.soundness import (
    NO_LAUNCHES,
    LostKernels,
    drop_impossible_events,
    drop_repeated_files,
    find_lost_kernels,
    find_record_gaps,
    keep_common_steps,
    note_dropped_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.notes import Note
    from tracelens.model.recognition import Gap
    from tracelens.model.trace import Trace


@dataclass(eq=False)
class CheckedFile(ReadFile):
    """What one file holds, and what of its records cannot be or is missing."""

    impossible_phrases: list[str] = field(default_factory=list)  # what was left out, and how much
    lost_kernels: LostKernels = NO_LAUNCHES

    def set_sound_rows(self, records: pl.DataFrame, launches: pl.DataFrame) -> None:
        """Set `rows` to the records that can be, and find launches without a kernel.

        Args:
            records: Rows with `start_ns`, `end_ns`, `kind`, `step`, `stream` (null on the host) and the
                `correlation` of work on streams with its launch, which is dropped.
            launches: Calls that launch one kernel each, with `start_ns` and `correlation`.
        """
        candidates = records.with_columns(
            duration_ns=pl.col("end_ns") - pl.col("start_ns"),
            is_kernel=pl.col("stream").is_not_null(),
        )
        negative_count = int((candidates["duration_ns"] < 0).sum())
        sound_rows, self.impossible_phrases = drop_impossible_events(
            candidates.filter(pl.col("duration_ns") >= 0),
            stream_columns=("stream",),
            negative_count=negative_count,
            event_count=records.height,
        )
        steps = sound_rows.filter(pl.col("kind") == "step").drop_nulls("step").sort("start_ns")
        self.lost_kernels = find_lost_kernels(
            launches.drop_nulls("correlation"),
            sound_rows.filter("is_kernel")["correlation"].drop_nulls(),
            steps.select("start_ns", "step").rows(),
        )
        self.rows = sound_rows.drop("duration_ns", "is_kernel", "correlation")


Profile = TypeVar("Profile", bound=CheckedFile)


class ProfilesReader(FilesReader[Profile]):
    """Base of readers of profiles of devices, one file a rank."""

    has_one_file_per_rank = True

    def join(
        self,
        path: Path,
        file_by_name: Mapping[str, Profile],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the profiles of a run, without those that repeat another, and steps that lost kernels."""
        profiles, repeat_notes = drop_repeated_files(file_by_name, ignored_columns=("clock",))
        rank_by_file = assign_ranks(profiles, given_ranks, self.why_no_rank)
        check_one_file_per_rank(rank_by_file)
        drop_notes = [
            note
            for name, profile in profiles.items()
            for note in note_dropped_records(
                name, profile.impossible_phrases, [profile.lost_kernels]
            )
        ]
        drop_notes += _keep_sound_steps(profiles, rank_by_file)
        return super().join(path, profiles, [*notes, *repeat_notes, *drop_notes], given_ranks)

    def list_severe_gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield which records cannot be, and which kernels are lost."""
        profiles = run.file_by_name.values()
        return find_record_gaps(
            (phrase for profile in profiles for phrase in profile.impossible_phrases),
            [profile.lost_kernels for profile in profiles],
            profiler="profiler",
        )


def _keep_sound_steps(
    profiles: Mapping[str, CheckedFile], rank_by_file: Mapping[str, int]
) -> list[Note]:
    """Leave out of all ranks the steps in which one lost kernels; return notes on that."""
    lossy_steps = [
        (rank_by_file[name], step)
        for name, profile in profiles.items()
        for step in profile.lost_kernels.lossy_steps
    ]
    if not lossy_steps:
        return []
    tables = [
        profile.rows.with_columns(rank=pl.lit(rank_by_file[name]), issued_ns=pl.lit(None, pl.Int64))
        for name, profile in profiles.items()
    ]
    rows, notes = keep_common_steps(pl.concat(tables, how="diagonal"), lossy_steps)
    for name, profile in profiles.items():
        profile.rows = rows.filter(pl.col("rank") == rank_by_file[name]).drop("rank", "issued_ns")
    return notes
