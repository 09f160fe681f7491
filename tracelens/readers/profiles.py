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
    drop_impossible,
    drop_repeated_files,
    find_lost_kernels,
    gaps_of_records,
    keep_common_steps,
    notes_of_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.notes import Note
    from tracelens.model.recognition import Gap
    from tracelens.model.trace import Trace

__all__ = ["CheckedFile", "ProfilesReader"]


@dataclass(eq=False)
class CheckedFile(ReadFile):
    """What one file holds; `impossible` are sentences on rows that were left out."""

    impossible: list[str] = field(default_factory=list)
    lost_kernels: LostKernels = NO_LAUNCHES

    def take_sound_rows(self, rows: pl.DataFrame, launches: pl.DataFrame) -> None:
        """Take the rows that can be, and find launches without a kernel.

        Args:
            rows: With `start_ns`, `end_ns`, `kind`, `stream`, `step` and the `correlation` of work on
                streams, which is left out.
            launches: Calls that launch one kernel each, with `start_ns` and `correlation`.
        """
        duration_ns, is_kernel = (
            pl.col("end_ns") - pl.col("start_ns"),
            pl.col("stream").is_not_null(),
        )
        candidates = rows.with_columns(duration_ns=duration_ns, is_kernel=is_kernel)
        negative_count = int((candidates["duration_ns"] < 0).sum())
        sound_rows, self.impossible = drop_impossible(
            candidates.filter(pl.col("duration_ns") >= 0),
            ("stream",),
            negative_count=negative_count,
            event_count=rows.height,
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
        contents: Mapping[str, Profile],
        notes: Sequence[Note],
        given_ranks: Mapping[str, int],
    ) -> Trace:
        """Join the profiles of a run, without those that repeat another, and steps that lost kernels."""
        profiles, repeat_notes = drop_repeated_files(contents, ignored_columns=("clock",))
        has_one_process = all(profile.process_count <= 1 for profile in profiles.values())
        ranks = assign_ranks(profiles, given_ranks, self.why_no_rank, alone=has_one_process)
        check_one_file_per_rank(ranks)
        drop_notes = [
            note
            for name, profile in profiles.items()
            for note in notes_of_records(name, profile.impossible, [profile.lost_kernels])
        ]
        drop_notes += _keep_sound_steps(profiles, ranks)
        return super().join(path, profiles, [*notes, *repeat_notes, *drop_notes], given_ranks)

    def severe_gaps(self, run: FileSet[Profile]) -> Iterator[Gap]:
        """Yield which records cannot be, and which kernels are lost."""
        profiles = run.contents.values()
        return gaps_of_records(
            (sentence for profile in profiles for sentence in profile.impossible),
            [profile.lost_kernels for profile in profiles],
            "profiler",
        )


def _keep_sound_steps(profiles: Mapping[str, CheckedFile], ranks: Mapping[str, int]) -> list[Note]:
    """Leave out of all ranks the steps in which one lost kernels; return notes on that."""
    lossy_steps = [
        (ranks[name], step) for name, file in profiles.items() for step in file.lost_kernels.steps
    ]
    if not lossy_steps:
        return []
    tables = [
        profile.rows.with_columns(rank=pl.lit(ranks[name]), issued_ns=pl.lit(None, pl.Int64))
        for name, profile in profiles.items()
    ]
    rows, notes = keep_common_steps(pl.concat(tables, how="diagonal"), lossy_steps)
    for name, profile in profiles.items():
        profile.rows = rows.filter(pl.col("rank") == ranks[name]).drop("rank", "issued_ns")
    return notes
