"""Checks records of devices: what cannot be is left out, what is missing is reported, with its share.

A stream does one kernel after the other, so none outlasts several of its successors. A launch has a
kernel, unless the profiler lost it. Events are near each other in time. Steps with too many lost kernels
are lost are not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import polars as pl

from tracelens.model import fmt
from tracelens.model.notes import Note
from tracelens.model.recognition import Gap

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tracelens.arrays import Flags

__all__ = [
    "KERNEL_LAUNCHES",
    "NO_LAUNCHES",
    "LostKernels",
    "drop_impossible",
    "drop_repeated_files",
    "find_lost_kernels",
    "gaps_of_records",
    "keep_common_steps",
    "notes_of_records",
]

MIN_SUCCESSORS_OUTLASTED: Final = (
    3  # kernels: no kernel of a stream outlasts as many later ones [chosen]
)
# share of a stream's kernels: if more (and more than one) outlast others, these do run at once [chosen]
MAX_SHARE_OUTLASTING: Final = 0.05
# times the span of nearly all begins: no event begins or ends farther away [chosen]
MAX_DISTANCE_IN_SPANS: Final = 100
MIN_EVENTS_OUTLASTED: Final = 100  # events: a kernel may go on for long after fewer [chosen]
MIN_SPAN_OF_EVENTS_NS: Final = (
    1_000_000_000  # ns: the span of nearly all begins is at least this [chosen]
)
SHARE_OF_EVENTS_ASIDE: Final = (
    0.01  # share of events: as many at each end are not nearly all [chosen]
)
# share of a step's launches: with more of them without a kernel, a step is not judged [policy]
MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT: Final = 0.5
# share of launches: if more of the steps that are left have no kernel, nothing is judged [policy]
MAX_LAUNCHES_WITHOUT_KERNEL: Final = 0.05

KERNEL_LAUNCHES: Final = r"LaunchKernel"  # names of calls that launch one kernel each


@dataclass(frozen=True)
class LostKernels:
    """Launches without a kernel: how many of all, and the steps in which many have none.

    `everywhere`: also in the other steps, or outside of steps, too many have none.
    """

    count: int = 0
    launches: int = 0
    steps: tuple[int, ...] = ()
    everywhere: bool = False

    @property
    def share(self) -> float:
        """What share of launches has no kernel."""
        return self.count / max(self.launches, 1)

    @property
    def text(self) -> str:
        """The same in words."""
        return f"{self.count:,} of {self.launches:,} launches ({fmt.percent(self.share)}) have no kernel"


NO_LAUNCHES: Final = LostKernels()


def drop_impossible(
    rows: pl.DataFrame, stream_columns: Sequence[str], *, negative: int, events: int
) -> tuple[pl.DataFrame, list[str]]:
    """Leave out rows that cannot be; return the others, and sentences on those, with their share.

    Args:
        rows: Events with `start_ns`, `duration_ns` (at least 0) and `is_kernel`.
        stream_columns: The columns that tell streams apart.
        negative: How many of all `events` end before they begin; they are not in `rows`.
        events: How many there are in all.
    """
    sentences = []
    if negative:
        share = fmt.percent(negative / max(events, 1), 1)
        sentences.append(f"events that end before they begin, {negative:,} of {events:,} ({share})")
    is_far = _far(rows)
    if is_far.any():
        share = fmt.percent(is_far.mean(), 1)
        sentences.append(
            f"events that begin or end far from all others, {int(is_far.sum()):,} of "
            f"{len(is_far):,} ({share})"
        )
        rows = rows.filter(~is_far)
    is_too_long = _outlasting(rows, stream_columns)
    if is_too_long.any():
        kernels, lasted_ns = rows["is_kernel"].to_numpy(), rows["duration_ns"].to_numpy()
        share = fmt.percent(lasted_ns[is_too_long].sum() / lasted_ns[kernels].sum())
        sentences.append(
            f"kernels that outlast later ones of their stream, or all else, "
            f"{int(is_too_long.sum()):,} of {int(kernels.sum()):,} ({share} of the time of kernels)"
        )
        rows = rows.filter(~is_too_long)
    return rows, sentences


def find_lost_kernels(
    launches: pl.DataFrame, kernels: pl.Series, steps: Sequence[tuple[int, int]]
) -> LostKernels:
    """Compare launches with kernels; a rank without any kernel has lost none, as none were recorded.

    Args:
        launches: Of one rank, with `correlation` and `start_ns`.
        kernels: The correlations of its work on devices.
        steps: When each of its steps begins, and its number; in order.
    """
    if kernels.is_empty() or launches.is_empty():
        return LostKernels(0, launches.height)
    lost = ~launches["correlation"].is_in(kernels.unique().implode())
    begins = np.array([begin_ns for begin_ns, _ in steps], np.int64)
    window = np.searchsorted(begins, launches["start_ns"].to_numpy(), "right")
    launches_of_step, lost_of_step = (
        np.bincount(window, weights, len(steps) + 1)[1:] for weights in (None, lost.to_numpy())
    )
    is_lossy = lost_of_step > MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT * launches_of_step
    launches_left, lost_of_rest = (
        launches.height - launches_of_step[is_lossy].sum(),
        lost.sum() - lost_of_step[is_lossy].sum(),
    )
    return LostKernels(
        int(lost.sum()),
        launches.height,
        tuple(step for (_, step), lossy in zip(steps, is_lossy.tolist(), strict=True) if lossy),
        everywhere=bool(lost_of_rest > MAX_LAUNCHES_WITHOUT_KERNEL * launches_left)
        or launches_left == 0,
    )


def _far(rows: pl.DataFrame) -> Flags:
    """Mark rows that begin or end far from nearly all others."""
    start_ns = rows["start_ns"].to_numpy()
    end_ns = start_ns + rows["duration_ns"].to_numpy()
    if not len(start_ns):
        return np.zeros(0, np.bool_)
    aside = SHARE_OF_EVENTS_ASIDE
    first_ns, last_ns = np.quantile(start_ns, [aside, 1 - aside], method="nearest")
    distance_ns = MAX_DISTANCE_IN_SPANS * max(int(last_ns - first_ns), MIN_SPAN_OF_EVENTS_NS)
    return np.asarray((first_ns - start_ns > distance_ns) | (end_ns - last_ns > distance_ns))


def _outlasting(rows: pl.DataFrame, stream_columns: Sequence[str]) -> Flags:
    """Mark kernels that last beyond the begins of several later ones of their stream."""
    is_outlasting = np.zeros(rows.height, np.bool_)
    is_kernel = rows["is_kernel"].to_numpy()
    kernel_rows = rows.with_row_index("row_number").filter(is_kernel).sort("start_ns")
    for stream_rows in kernel_rows.partition_by(*stream_columns) if kernel_rows.height else ():
        start_ns = stream_rows["start_ns"].to_numpy()
        end_ns = start_ns + stream_rows["duration_ns"].to_numpy()
        successors = np.searchsorted(start_ns, end_ns) - np.arange(len(start_ns)) - 1
        outlasts = successors >= MIN_SUCCESSORS_OUTLASTED
        if outlasts.sum() <= max(MAX_SHARE_OUTLASTING * len(start_ns), 1):
            is_outlasting[stream_rows["row_number"].to_numpy()[outlasts]] = True
    return is_outlasting | (is_kernel & _outlasts_file(rows))


def _outlasts_file(rows: pl.DataFrame) -> Flags:
    """Mark a row that goes on after all others for longer than these lasted."""
    start_ns = rows["start_ns"].to_numpy()
    end_ns = start_ns + rows["duration_ns"].to_numpy()
    if len(end_ns) < MIN_EVENTS_OUTLASTED:
        return np.zeros(len(end_ns), np.bool_)
    previous_end_ns, last_end_ns = np.partition(end_ns, -2)[-2:]
    is_last = end_ns == last_end_ns
    return np.asarray(is_last & (last_end_ns - previous_end_ns > previous_end_ns - start_ns.min()))


def notes_of_records(
    file: str, impossible: Sequence[str], lost: Iterable[LostKernels]
) -> list[Note]:
    """Note which records of a file were left out as impossible, and which kernels it lost."""
    sentences = []
    if impossible:
        sentences.append(f"Of '{file}', what cannot be is left out: {fmt.series(impossible)}.")
    for lost_kernels in lost:
        if lost_kernels.count:
            steps = lost_kernels.steps
            when = f", most in {fmt.steps(min(steps), max(steps))}" if steps else ""
            sentences.append(f"Of '{file}', {lost_kernels.text}{when}: the profiler lost it.")
    return [Note(file, sentence, "dropped") for sentence in sentences]


def gaps_of_records(
    impossible: Iterable[str], lost: Iterable[LostKernels], profiler: str
) -> Iterator[Gap]:
    """Yield which records cannot be, and which are not there, in profiles that `profiler` wrote."""
    sentences = list(dict.fromkeys(impossible))
    if sentences:
        yield Gap(
            f"what cannot be is left out: {fmt.series(sentences)}",
            "what was done in records that cannot be",
            f"Profile fewer steps, or with a newer {profiler}.",
            decisive=False,
        )
    lossy = [lost_kernels for lost_kernels in lost if lost_kernels.count]
    if lossy:
        is_lost_everywhere = any(lost_kernels.everywhere for lost_kernels in lossy)
        yield Gap(
            max(lossy, key=lambda lost_kernels: lost_kernels.share).text,
            "what devices did where kernels are lost",
            "Profile fewer steps at once, so that the profiler's buffer holds all kernels.",
            decisive=is_lost_everywhere,
            voids_faults=is_lost_everywhere,
        )


def keep_common_steps(
    rows: pl.DataFrame, lossy: Collection[tuple[int, int]]
) -> tuple[pl.DataFrame, list[Note]]:
    """Leave out the steps that not all ranks recorded, or that lost kernels, and note it.

    Args:
        rows: With `rank`, `kind`, `step`, `start_ns` and `issued_ns`. Work of a device belongs to the
            step in which it was issued.
        lossy: Ranks and steps with too many lost kernels.
    """
    bounds = _longest_stretch(rows, lossy)
    if bounds is None:
        return rows, []
    kept_rows = _keep_steps(rows, *bounds)
    step_count, kept_count = (
        frame.filter(pl.col("kind") == "step").height for frame in (rows, kept_rows)
    )
    if step_count == kept_count:
        return rows, []
    sentence = (
        f"Not all ranks recorded all steps: {fmt.steps(*bounds)}, which all did, are judged; of all "
        f"ranks' steps, {step_count - kept_count:,} of {step_count:,} are left out."
    )
    return kept_rows, [Note("", sentence, "dropped")]


def _longest_stretch(
    rows: pl.DataFrame, lossy: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the first and last step of the longest stretch that all ranks recorded; None without."""
    steps = rows.filter(pl.col("kind") == "step", pl.col("step") >= 0).group_by("rank")
    bounds = steps.agg(first=pl.col("step").min(), last=pl.col("step").max())
    if bounds.is_empty():
        return None
    first, last = bounds.select(pl.col("first").max(), pl.col("last").min()).row(0)
    breaks = sorted({first - 1, *(step for _, step in lossy if first <= step <= last), last + 1})
    begin, end = max(pairwise(breaks), key=lambda pair: pair[1] - pair[0], default=(0, 0))
    return (begin + 1, end - 1) if end - begin > 1 else None


def _keep_steps(rows: pl.DataFrame, first_step: int, last_step: int) -> pl.DataFrame:
    is_step = (pl.col("kind") == "step") & (pl.col("step") >= 0)
    is_before, is_after = (
        is_step & (pl.col("step") < first_step),
        is_step & (pl.col("step") > last_step),
    )
    begin_ns = pl.when(is_before.any().over("rank")).then(
        pl.when(is_step & (pl.col("step") >= first_step)).then("start_ns").min().over("rank")
    )
    end_ns = pl.when(is_after).then("start_ns").min().over("rank")
    issued_ns = pl.coalesce("issued_ns", "start_ns")
    return rows.filter(
        (issued_ns >= begin_ns).fill_null(value=True), (issued_ns < end_ns).fill_null(value=True)
    )


class _HasRows(Protocol):
    @property
    def rows(self) -> pl.DataFrame: ...


File = TypeVar("File", bound=_HasRows)


def drop_repeated_files(
    files: Mapping[str, File], aside: Collection[str] = ()
) -> tuple[dict[str, File], list[Note]]:
    """Leave out files that repeat an earlier one but for the columns `aside`, and note it."""
    kept_files: dict[str, File] = {}
    notes = []
    for name, file in files.items():
        rows = file.rows.drop(aside, strict=False)
        earlier_name = next(
            (
                kept_name
                for kept_name, kept_file in kept_files.items()
                if kept_file.rows.height == rows.height
                and kept_file.rows.drop(aside, strict=False).equals(rows)
            ),
            None,
        )
        if earlier_name is None or rows.is_empty():
            kept_files[name] = file
            continue
        sentence = f"'{name}' repeats '{earlier_name}', all {rows.height:,} events: it counts once."
        notes.append(Note(name, sentence, "dropped"))
    return kept_files, notes
