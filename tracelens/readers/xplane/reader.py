"""The reader for XPlane files: one a host, or the folder in which a profiler put them.

A file does not say its rank. A file alone is shown as rank 0, and the verdict stays open; of several
files the user says each one's rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.model.recognition import Gap
from tracelens.readers import files
from tracelens.readers.base import SIMPLY, Reading
from tracelens.readers.links import inside
from tracelens.readers.xplane.columns import profile_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.xplane.columns import Profile

__all__ = ["SUFFIX", "XPlaneReader"]

SUFFIX: Final = ".xplane.pb"


@dataclass(frozen=True)
class XPlaneReader:
    """Reads a file ``HOST.xplane.pb``, or a folder with one a host."""

    name: str = "profile of XLA (XPlane)"

    def sniff(self, path: Path) -> bool:
        """Return whether it is a file called so, or a folder with at least one."""
        return bool(inside(_files(path), path))

    def read(self, path: Path, how: Reading = SIMPLY) -> Trace:
        """Read all files; one that cannot be read is noted, where there are others.

        Raises:
            MissingExtra: protobuf's library is not installed.
            NotATrace: no file can be read.
            EmptyTrace: there is no event in them.
            UnusableInput: it is not known of which rank a file is.
        """
        profiles, notes = files.each_read(path, _files(path), profile_of, how)
        given = files.ranks_given(
            profiles, how.rank_of, "XPlane files do not say their rank", alone=True
        )
        ranks = files.one_a_rank(given)
        rows = pl.concat(profile.rows for profile in profiles.values())
        gaps = _gaps(rows, profiles, how.rank_of)
        recognition = files.recognized("profile of XLA", profiles, gaps)
        return files.joined(path, profiles, ranks, notes, recognition)


def _files(path: Path) -> list[Path]:
    """Return the files called as profilers of XLA call theirs: their names are all that marks them."""
    return [file for file in files.called(path, (SUFFIX,)) if file.name.endswith(SUFFIX)]


def _gaps(
    rows: pl.DataFrame, profiles: Mapping[str, Profile], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique())
    yield from files.ranks_unknown(profiles, given)
    if "step" not in kinds:
        yield Gap(
            "no step is marked",
            "how steps differ, and which rank is slow in them",
            "Put each step into jax.profiler.StepTraceAnnotation('train', step_num=N).",
        )
    if not kinds & {"forward", "backprop", "update"}:
        yield Gap(
            "no annotation names a phase of training",
            "which phase ranks compute in: XLA runs a step as one program",
            "Put phases into jax.profiler.TraceAnnotation called forward, backward and optimizer.",
            decisive=False,
        )
    if rows["stream"].n_unique() > 1:
        yield Gap(
            "all devices of a process are streams of its rank",
            "which device of a process is slow",
            "Run one process a device.",
            decisive=False,
        )
