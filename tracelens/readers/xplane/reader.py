"""The reader for XPlane files: one a host, or the folder in which a profiler put them.

A file does not say its rank. A file alone is shown as rank 0, and the verdict stays open; of several
files the user says each one's rank.
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
from tracelens.readers.links import check_inside, inside
from tracelens.readers.spans import Origin
from tracelens.readers.xplane.columns import profile_of
from tracelens.schema.rules import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tracelens.model.trace import Trace
    from tracelens.readers.xplane.columns import Profile

__all__ = ["SUFFIX", "XPlaneReader"]

SUFFIX: Final = ".xplane.pb"
_SHOWN: Final = 3


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
        profiles, notes = _profiles(path, how)
        ranks = _ranks(list(profiles), how.rank_of)
        rows = pl.concat(
            profile.rows.with_columns(
                rank=pl.lit(ranks[file], pl.Int32),
                host=pl.lit(profile.host or None, pl.String),
                clock=pl.lit(file),
                file=pl.lit(file),
            )
            for file, profile in profiles.items()
        )
        if rows.is_empty():
            raise EmptyTrace(f"'{path}' holds no event of a host or of a device.")
        unusable = sum(profile.unusable for profile in profiles.values())
        origin = Origin(
            f"'{path.name}'",
            path.name,
            once=True,
            unusable={lacking("start_ns"): unusable} if unusable else {},
            notes=notes,
            recognition=_recognition(rows, profiles, how.rank_of),
        )
        return spans.build(rows, origin).with_(path=path)


def _files(path: Path) -> list[Path]:
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    return [entry for entry in entries if entry.name.endswith(SUFFIX) and entry.is_file()]


def _profiles(path: Path, how: Reading) -> tuple[dict[str, Profile], list[Note]]:
    files = _files(path)
    found, notes = {}, []
    for done, file in enumerate(files):
        if how.progress:
            how.progress(done, len(files))
        try:
            check_inside(file, path)
            found[file.name] = profile_of(file)
        except (NotATrace, OSError) as error:
            sentence = f"'{file.name}' cannot be read: {error}."
            if len(files) == 1:
                raise NotATrace(sentence) from error
            notes.append(Note(file.name, sentence, "unreadable"))
    if not found:
        raise NotATrace(notes[0].sentence if notes else f"'{path}' holds no XPlane file.")
    return found, notes


def _ranks(files: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """Return the rank of each file.

    Raises:
        UnusableInput: it is not known, or two are of the same one.
    """
    silent = [file for file in files if file not in given]
    if silent and len(files) > 1:
        shown = fmt.series([f"'{name}'" for name in silent[:_SHOWN]])
        more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
        raise UnusableInput(
            f"XPlane files do not say their rank: say of which rank {shown}{more} "
            f"{'is' if len(silent) == 1 else 'are'} with --rank-of {silent[0]}=RANK."
        )
    ranks = {file: given.get(file, 0) for file in files}
    places: dict[int, str] = {}
    for file, rank in ranks.items():
        if rank in places:
            raise UnusableInput(
                f"'{places[rank]}' and '{file}' are both said to be of rank {rank}: a rank has one file."
            )
        places[rank] = file
    return ranks


def _recognition(
    rows: pl.DataFrame, profiles: Mapping[str, Profile], given: Mapping[str, int]
) -> Recognition:
    planes: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for profile in profiles.values():
        planes += profile.planes
        left_out += profile.left_out
    listed = ", ".join(f"{count:,} of {plane}" for plane, count in planes.most_common(12))
    return Recognition(
        format="profile of XLA",
        found=(("events", f"{sum(planes.values()):,}: {listed}"),),
        left_out=tuple(left_out.items()),
        gaps=tuple(_gaps(rows, profiles, given)),
    )


def _gaps(
    rows: pl.DataFrame, profiles: Mapping[str, Profile], given: Mapping[str, int]
) -> Iterator[Gap]:
    kinds = set(rows["kind"].unique())
    if any(file not in given for file in profiles):
        yield Gap(
            "the file does not say of which rank it is",
            "what other ranks did, and which one is slow",
            "Give the files of all processes, each with --rank-of FILE=RANK.",
        )
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
