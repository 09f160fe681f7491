"""Checks records of devices: what cannot be is left out, what is missing is reported, with its share.

A stream does one kernel after the other, so none outlasts several of its successors. A launch has a
kernel, unless the profiler lost it. Events are near each other in time.
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

# kernels: no kernel of a stream outlasts as many later ones [chosen]
MIN_SUCCESSORS_OUTLASTED: Final = 3
# share of a stream's kernels: if more (and more than one) outlast others, these do run at once [chosen]
MAX_SHARE_OUTLASTING: Final = 0.05
# times the span of nearly all begins: no event begins or ends farther away [chosen]
MAX_DISTANCE_IN_SPANS: Final = 100
MIN_EVENTS_OUTLASTED: Final = 100  # events: a kernel may go on for long after fewer [chosen]
# ns: the span of nearly all begins is at least this [chosen]
MIN_SPAN_OF_EVENTS_NS: Final = 1_000_000_000
# share of events: as many at each end are not nearly all [chosen]
SHARE_OF_EVENTS_ASIDE: Final = 0.01
# share of a step's launches: with more of them without a kernel, a step is not judged [policy]
MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT: Final = 0.5
# share of launches: if more of the steps that are left have no kernel, nothing is judged [policy]
MAX_LAUNCHES_WITHOUT_KERNEL: Final = 0.05

KERNEL_LAUNCHES: Final = r"LaunchKernel"  # names of calls that launch one kernel each


@dataclass(frozen=True)
class LostKernels:
    """Launches of one rank that have no kernel: the profiler lost it."""

    lost_count: int = 0
    launch_count: int = 0
    lossy_steps: tuple[int, ...] = ()  # numbers of steps in which most have none
    has_losses_elsewhere: bool = False  # also outside of these steps, or there is no other launch

    @property
    def lost_share(self) -> float:
        """Share of launches that have no kernel."""
        return self.lost_count / max(self.launch_count, 1)

    @property
    def loss_clause(self) -> str:
        """How many launches have no kernel, in words."""
        counts_text = f"{self.lost_count:,} of {self.launch_count:,} launches"
        return f"{counts_text} ({fmt.percent(self.lost_share)}) have no kernel"


NO_LAUNCHES: Final = LostKernels()


def drop_impossible_events(
    events: pl.DataFrame, stream_columns: Sequence[str], *, negative_count: int, event_count: int
) -> tuple[pl.DataFrame, list[str]]:
    """Leave out rows that cannot be; return the others, and phrases on those, with their share.

    Args:
        events: Events with `start_ns`, `duration_ns` (at least 0) and `is_kernel`.
        stream_columns: The columns that tell streams apart.
        negative_count: How many of all `event_count` end before they begin; they are not in `events`.
        event_count: How many there are in all.
    """
    phrases = []
    if negative_count:
        share_text = fmt.percent(negative_count / max(event_count, 1), digits=1)
        phrases.append(
            f"events that end before they begin, {negative_count:,} of {event_count:,} ({share_text})"
        )
    is_far = _is_far_off(events)
    if is_far.any():
        share_text = fmt.percent(is_far.mean(), digits=1)
        phrases.append(
            f"events that begin or end far from all others, {int(is_far.sum()):,} of "
            f"{len(is_far):,} ({share_text})"
        )
        events = events.filter(~is_far)
    is_too_long = _outlasts_stream(events, stream_columns)
    if is_too_long.any():
        is_kernel, duration_ns = events["is_kernel"].to_numpy(), events["duration_ns"].to_numpy()
        share_text = fmt.percent(duration_ns[is_too_long].sum() / duration_ns[is_kernel].sum())
        phrases.append(
            f"kernels that outlast later ones of their stream, or all else, "
            f"{int(is_too_long.sum()):,} of {int(is_kernel.sum()):,} "
            f"({share_text} of the time of kernels)"
        )
        events = events.filter(~is_too_long)
    return events, phrases


def find_lost_kernels(
    launches: pl.DataFrame, kernel_correlations: pl.Series, steps: Sequence[tuple[int, int]]
) -> LostKernels:
    """Compare launches with kernels; a rank without any kernel has lost none, as none were recorded.

    Args:
        launches: Of one rank, with `correlation` and `start_ns`.
        kernel_correlations: The correlations of its work on devices.
        steps: Begin in ns, and number, of each of its steps; in order.
    """
    if kernel_correlations.is_empty() or launches.is_empty():
        return LostKernels(lost_count=0, launch_count=launches.height)
    is_lost = ~launches["correlation"].is_in(kernel_correlations.unique().implode())
    begins_ns = np.array([begin_ns for begin_ns, _ in steps], np.int64)
    # Launches before the first step are in bin 0, the others in bin 1 + the index of their step.
    bin_of_launch = np.searchsorted(begins_ns, launches["start_ns"].to_numpy(), "right")
    bin_count = len(steps) + 1
    launch_counts = np.bincount(bin_of_launch, minlength=bin_count)[1:]
    lost_counts = np.bincount(bin_of_launch, weights=is_lost.to_numpy(), minlength=bin_count)[1:]
    is_lossy = lost_counts > MIN_SHARE_LOST_IF_STEP_IS_LEFT_OUT * launch_counts  # [step]
    launches_elsewhere = launches.height - launch_counts[is_lossy].sum()
    lost_elsewhere = int(is_lost.sum()) - lost_counts[is_lossy].sum()
    return LostKernels(
        lost_count=int(is_lost.sum()),
        launch_count=launches.height,
        lossy_steps=tuple(steps[index][1] for index in np.flatnonzero(is_lossy).tolist()),
        has_losses_elsewhere=bool(lost_elsewhere > MAX_LAUNCHES_WITHOUT_KERNEL * launches_elsewhere)
        or launches_elsewhere == 0,
    )


def _is_far_off(events: pl.DataFrame) -> Flags:
    """Flag events, [event], far before or after all begins but the share `SHARE_OF_EVENTS_ASIDE`."""
    start_ns = events["start_ns"].to_numpy()
    end_ns = start_ns + events["duration_ns"].to_numpy()
    if not len(start_ns):
        return np.zeros(0, np.bool_)
    share = SHARE_OF_EVENTS_ASIDE
    first_ns, last_ns = np.quantile(start_ns, [share, 1 - share], method="nearest")
    limit_ns = MAX_DISTANCE_IN_SPANS * max(int(last_ns - first_ns), MIN_SPAN_OF_EVENTS_NS)
    return np.asarray((first_ns - start_ns > limit_ns) | (end_ns - last_ns > limit_ns))


def _outlasts_stream(events: pl.DataFrame, stream_columns: Sequence[str]) -> Flags:
    """Flag kernels, [event], that outlast several later ones of their stream, if few do, or the file.

    `stream_columns` of `events` identify a stream.
    """
    is_outlasting = np.zeros(events.height, np.bool_)
    is_kernel = events["is_kernel"].to_numpy()
    kernels = events.with_row_index("row_number").filter(is_kernel).sort("start_ns")
    for stream_kernels in kernels.partition_by(*stream_columns) if kernels.height else ():
        start_ns = stream_kernels["start_ns"].to_numpy()
        end_ns = start_ns + stream_kernels["duration_ns"].to_numpy()
        outlasted_count = np.searchsorted(start_ns, end_ns) - np.arange(len(start_ns)) - 1
        outlasts = outlasted_count >= MIN_SUCCESSORS_OUTLASTED
        if outlasts.sum() <= max(MAX_SHARE_OUTLASTING * len(start_ns), 1):
            is_outlasting[stream_kernels["row_number"].to_numpy()[outlasts]] = True
    return is_outlasting | (is_kernel & _outlasts_file(events))


def _outlasts_file(events: pl.DataFrame) -> Flags:
    """Flag the event, [event], that ends last, if it outlasts all others by more than these lasted."""
    start_ns = events["start_ns"].to_numpy()
    end_ns = start_ns + events["duration_ns"].to_numpy()
    if len(end_ns) < MIN_EVENTS_OUTLASTED:
        return np.zeros(len(end_ns), np.bool_)
    previous_end_ns, last_end_ns = np.partition(end_ns, -2)[-2:]
    is_last = end_ns == last_end_ns
    return np.asarray(is_last & (last_end_ns - previous_end_ns > previous_end_ns - start_ns.min()))


def note_dropped_records(
    file: str, impossible_phrases: Sequence[str], lost_kernels: Iterable[LostKernels]
) -> list[Note]:
    """Note which records of a file were left out, as phrases say, and which kernels each rank lost."""
    sentences = []
    if impossible_phrases:
        listed = fmt.join_words(impossible_phrases)
        sentences.append(f"Of '{file}', what cannot be is left out: {listed}.")
    for lost in lost_kernels:
        if lost.lost_count:
            steps = lost.lossy_steps
            steps_text = f", most in {fmt.steps(min(steps), max(steps))}" if steps else ""
            sentences.append(f"Of '{file}', {lost.loss_clause}{steps_text}: the profiler lost it.")
    return [Note(file, sentence, "dropped") for sentence in sentences]


def find_record_gaps(
    impossible_phrases: Iterable[str], lost_kernels: Iterable[LostKernels], *, profiler: str
) -> Iterator[Gap]:
    """Yield which records of a `profiler` cannot be, as phrases say, and which kernels ranks lost."""
    phrases = list(dict.fromkeys(impossible_phrases))
    if phrases:
        yield Gap(
            f"what cannot be is left out: {fmt.join_words(phrases)}",
            "what was done in records that cannot be",
            f"Profile fewer steps, or with a newer {profiler}.",
            is_decisive=False,
        )
    losses = [lost for lost in lost_kernels if lost.lost_count]
    if losses:
        # Lossy steps can be left out; losses elsewhere cannot.
        has_losses_elsewhere = any(lost.has_losses_elsewhere for lost in losses)
        yield Gap(
            max(losses, key=lambda lost: lost.lost_share).loss_clause,
            "what devices did where kernels are lost",
            "Profile fewer steps at once, so that the profiler's buffer holds all kernels.",
            is_decisive=has_losses_elsewhere,
            voids_faults=has_losses_elsewhere,
        )


def keep_common_steps(
    spans: pl.DataFrame, lossy_steps: Collection[tuple[int, int]]
) -> tuple[pl.DataFrame, list[Note]]:
    """Leave out the steps that not all ranks recorded, or that lost kernels, and note it.

    Args:
        spans: With `rank`, `kind`, `step`, `start_ns` and `issued_ns`. Work of a device belongs to the
            step in which it was issued.
        lossy_steps: Pairs of rank and step with too many lost kernels.
    """
    step_range = _find_common_steps(spans, lossy_steps)
    if step_range is None:
        return spans, []
    kept_spans = _keep_steps(spans, *step_range)
    is_step = pl.col("kind") == "step"
    step_count, kept_count = (table.filter(is_step).height for table in (spans, kept_spans))
    if step_count == kept_count:
        return spans, []
    sentence = (
        f"Not all ranks recorded all steps: {fmt.steps(*step_range)}, which all did, are judged; of all "
        f"ranks' steps, {step_count - kept_count:,} of {step_count:,} are left out."
    )
    return kept_spans, [Note(file="", sentence=sentence, kind="dropped")]


def _find_common_steps(
    spans: pl.DataFrame, lossy_steps: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the first and last step of the longest stretch that all ranks recorded whole, or None.

    `lossy_steps` are pairs of rank and step that lost kernels.
    """
    steps = spans.filter(pl.col("kind") == "step", pl.col("step") >= 0).group_by("rank")
    bounds_of_ranks = steps.agg(first=pl.col("step").min(), last=pl.col("step").max())
    if bounds_of_ranks.is_empty():
        return None
    first, last = bounds_of_ranks.select(pl.col("first").max(), pl.col("last").min()).row(0)
    lossy_numbers = {step for _, step in lossy_steps if first <= step <= last}  # of any rank
    excluded_steps = sorted({first - 1, *lossy_numbers, last + 1})  # stretches lie between them
    stretches = pairwise(excluded_steps)
    before, after = max(stretches, key=lambda pair: pair[1] - pair[0], default=(0, 0))
    return (before + 1, after - 1) if after - before > 1 else None


def _keep_steps(spans: pl.DataFrame, first_step: int, last_step: int) -> pl.DataFrame:
    """Keep what each rank issued from the begin of `first_step` to the end of `last_step`.

    A rank without earlier or later steps keeps what is before its first, or after its last one.
    """
    is_step = (pl.col("kind") == "step") & (pl.col("step") >= 0)
    is_before = is_step & (pl.col("step") < first_step)
    is_after = is_step & (pl.col("step") > last_step)
    kept_start_ns = pl.when(is_step & ~is_before).then("start_ns").min().over("rank")
    begin_ns = pl.when(is_before.any().over("rank")).then(kept_start_ns)  # null: no limit
    end_ns = pl.when(is_after).then("start_ns").min().over("rank")
    issued_ns = pl.coalesce("issued_ns", "start_ns")
    return spans.filter(
        (issued_ns >= begin_ns).fill_null(value=True), (issued_ns < end_ns).fill_null(value=True)
    )


class _HasRows(Protocol):
    @property
    def rows(self) -> pl.DataFrame: ...


File = TypeVar("File", bound=_HasRows)


def drop_repeated_files(
    file_by_name: Mapping[str, File], ignored_columns: Collection[str] = ()
) -> tuple[dict[str, File], list[Note]]:
    """Leave out files whose rows repeat those of an earlier one, but for `ignored_columns`; note it."""
    kept_files: dict[str, File] = {}  # by name
    notes = []
    for name, file in file_by_name.items():
        rows = file.rows.drop(ignored_columns, strict=False)
        earlier_name = next(
            (
                kept_name
                for kept_name, kept_file in kept_files.items()
                if kept_file.rows.height == rows.height
                and kept_file.rows.drop(ignored_columns, strict=False).equals(rows)
            ),
            None,
        )
        if earlier_name is None or rows.is_empty():
            kept_files[name] = file
            continue
        sentence = f"'{name}' repeats '{earlier_name}', all {rows.height:,} events: it counts once."
        notes.append(Note(name, sentence, "dropped"))
    return kept_files, notes
