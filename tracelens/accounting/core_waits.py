"""What of a straggler's delay is waiting for a core: of a busy machine, or too many threads for it.

The recorder reads now and then for how long the kernel let a process's main thread run, and for how
long it was ready to run and waited in a run queue (`queued_ns`). A thread that waits actively, as in
MPI, does so in its waits as well, so the time in run queues is taken as spread evenly over the time in
which it was ready. A rank whose work is longer than its peers' with this time, and is not without it,
is no slow one; one that has more to do has it with and without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.arrays import Indices, Ints
    from tracelens.model.clock_map import ClockMap
    from tracelens.model.trace import Trace

_MAIN: Final = "MainThread"  # the one whose times are read
# share of a delay: waiting for a core is the cause if it explains as much [chosen]
MIN_SHARE_OF_DELAY_IF_CAUSE: Final = 0.75
# of the usual work: it is also the cause if less of the delay is left, and peers wait
# as well [chosen]
MAX_DELAY_LEFT_IF_CAUSE: Final = 0.10
# share of the time: peers that wait for cores less do not excuse a delay that is left [chosen]
MIN_SHARE_OF_TIME_PEERS_WAIT: Final = 0.25
# share of the time: a longer wait for a core may be the cause if these steps were not read [chosen]
MIN_SHARE_OF_TIME_IF_MAYBE_CAUSE: Final = 0.2
# ratio: peers that wait for cores this much of the delayed ranks' share wait as well [chosen]
MIN_RATIO_OF_WAITS_IF_COMMON: Final = 0.25
# share of a delay: waiting for a core that explains less gets no sentence [policy]
MIN_SHARE_OF_DELAY_TO_REPORT: Final = 0.5
# share of the time: readings tell of steps that make up this much of the time between them [chosen]
MIN_SHARE_OF_TIME_READ: Final = 0.75
# share of the time of steps: the machine was busy if ranks wait for cores
# longer on average [policy]
MIN_WAIT_FOR_CORES_IF_BUSY: Final = 0.2


@dataclass(frozen=True)
class CoreWait:
    """Share of the time in which late ranks waited for a core, and the usual share.

    That is what peers did, or all ranks at other times. `explained_share` is the share of the delay that
    is gone without these waits; `delay_share_left` is what is not, as a share of the usual work. None
    where times were read too seldom to tell these steps from others.
    """

    wait_share: float
    usual_wait_share: float
    explained_share: float | None
    delay_share_left: float | None

    @property
    def is_cause(self) -> bool:
        """Whether there is hardly a delay without it; a bit more, where all wait by chance."""
        if self.explained_share is None or self.delay_share_left is None:
            return False
        is_little_left = self.delay_share_left < MAX_DELAY_LEFT_IF_CAUSE
        all_wait = self.usual_wait_share >= MIN_SHARE_OF_TIME_PEERS_WAIT
        return self.explained_share >= MIN_SHARE_OF_DELAY_IF_CAUSE or (is_little_left and all_wait)

    @property
    def may_be_cause(self) -> bool:
        """Whether the wait is the cause, or may be: it is long enough, and was not read when."""
        waited_long = self.wait_share >= MIN_SHARE_OF_TIME_IF_MAYBE_CAUSE
        return self.is_cause or (self.explained_share is None and waited_long)

    @property
    def is_common(self) -> bool:
        """Whether peers waited for cores as well, so that it is chance who did so most."""
        min_usual_share = MIN_RATIO_OF_WAITS_IF_COMMON * self.wait_share
        return self.is_cause and self.usual_wait_share >= min_usual_share

    def describe(self, ranks: str, others: str) -> list[str]:
        """Describe the wait in a sentence, if it may explain the delay; `ranks`, `others`: names."""
        percent, usual_percent = fmt.percent(self.wait_share), fmt.percent(self.usual_wait_share)
        wait_clause = f"{fmt.capital(ranks)} waited for a core for {percent} of the time"
        if self.explained_share is None:
            reason = "whether more in these steps than in others was not read"
            return [f"{wait_clause}; {reason}."] if self.may_be_cause else []
        if self.explained_share < MIN_SHARE_OF_DELAY_TO_REPORT and not self.is_cause:
            return []
        explained = f"that explains {fmt.percent(self.explained_share)} of the delay"
        return [f"{wait_clause}, {others} for {usual_percent}: {explained}."]

    def to_evidence(self) -> dict[str, Any]:
        """Return the wait for a core as numbers, for a finding."""
        return {
            "share": self.wait_share,
            "usual": self.usual_wait_share,
            "explains": self.explained_share,
            "left": self.delay_share_left,
            "is_cause": self.is_cause,
        }


def measure_core_wait(
    trace: Trace, times: ComputeTime, delayed_columns: tuple[int, ...], step_rows: slice
) -> CoreWait | None:
    """Compare the waits for a core of late ranks (columns) with those of their peers, in some steps.

    None where not all of the late ranks, or no peer, have readings.
    """
    columns = [*delayed_columns, *times.find_compared_columns(delayed_columns).tolist()]
    waits_by_column = _measure_waits(trace, times, step_rows)
    waits = [waits_by_column.get(column) for column in columns]  # of the delayed ranks first
    known_waits = [wait for wait in waits if wait is not None]
    delayed_count = len(delayed_columns)
    if len(known_waits) < len(waits) or len(known_waits) == delayed_count:
        return None
    wait_shares, work_ns, undisturbed_ns = np.array(known_waits).T  # each [column]
    peer_work_ns, peer_undisturbed_ns = (
        float(np.median(ns[delayed_count:])) for ns in (work_ns, undisturbed_ns)
    )
    if peer_work_ns <= 0 or peer_undisturbed_ns <= 0:
        return None
    delay_shares = work_ns[:delayed_count] / peer_work_ns - 1
    delay_shares_left = np.maximum(undisturbed_ns[:delayed_count] / peer_undisturbed_ns - 1, 0.0)
    explained_shares = np.zeros(delayed_count)
    if (delay_shares > 0).all():
        explained_shares = 1 - delay_shares_left / delay_shares
    return CoreWait(
        wait_share=float(wait_shares[:delayed_count].max()),
        usual_wait_share=float(np.median(wait_shares[delayed_count:])),
        explained_share=float(np.clip(explained_shares.min(), 0.0, 1.0)),
        delay_share_left=float(delay_shares_left.max()),
    )


def measure_core_wait_of_all(
    trace: Trace, times: ComputeTime, step_rows: Indices, extra_ns: float
) -> CoreWait | None:
    """Compare the waits of all ranks for a core in some steps (rows of `times`) with the whole run's.

    These steps are each longer by `extra_ns`. Returns None without readings. Readings cover ranges of
    steps, so they explain no share of the delay if the steps are scattered over the run.
    """
    all_rows, row_range = (
        slice(0, len(times.step_numbers)),
        slice(int(step_rows[0]), int(step_rows[-1]) + 1),
    )
    waits_inside, waits_in_all = (
        _measure_waits(trace, times, selected_rows) for selected_rows in (row_range, all_rows)
    )
    # Share of time waited, compute time and compute time without waits: inside, then of the whole run.
    known_waits = [
        (*waits_inside[column], *waits_in_all[column])
        for column in sorted(waits_inside.keys() & waits_in_all)
    ]
    if not known_waits or extra_ns <= 0:
        return None
    wait_share, _, _, wait_share_in_all, work_ns, _ = np.median(np.array(known_waits), axis=0)
    is_contiguous = row_range.stop - row_range.start == len(step_rows)
    if not is_contiguous or not all(
        core_times.are_resolved for core_times in _read_times(trace, times.step_numbers[row_range])
    ):
        return CoreWait(
            float(wait_share),
            usual_wait_share=float(wait_share_in_all),
            explained_share=None,
            delay_share_left=None,
        )
    step_ns = float(np.median(times.step_length_ns[times.comparable_rows]))
    extra_wait_ns = wait_share * (step_ns + extra_ns) - wait_share_in_all * step_ns
    explained_share = float(np.clip(extra_wait_ns / extra_ns, 0.0, 1.0))
    delay_left = (1 - explained_share) * extra_ns / max(float(work_ns), 1.0)
    return CoreWait(
        float(wait_share),
        usual_wait_share=float(wait_share_in_all),
        explained_share=explained_share,
        delay_share_left=delay_left,
    )


def is_machine_busy(core_wait_share: float) -> bool:
    """Return True if ranks wait for cores for too large a share of steps to tell which one is slow."""
    return core_wait_share >= MIN_WAIT_FOR_CORES_IF_BUSY


def measure_core_wait_of_run(trace: Trace) -> float | None:
    """Return for what mean share of their steps' time ranks waited for a core; None if not read."""
    rank_times = _read_times(trace, trace.steps["step"].to_numpy())
    shares = [times.queued_ns / times.steps_ns for times in rank_times]
    return float(np.mean(shares)) if shares else None


def measure_ready_shares(trace: Trace) -> dict[int, float]:
    """Return for what share of the time of its steps each rank ran or waited for a core, where read."""
    rank_times = _read_times(trace, trace.steps["step"].to_numpy())
    return {times.rank: (times.ran_ns + times.queued_ns) / times.steps_ns for times in rank_times}


def _measure_waits(
    trace: Trace, compute_times: ComputeTime, step_rows: slice
) -> dict[int, tuple[float, float, float]]:
    """Measure how long ranks waited for a core in some steps, by column (rank).

    Returns the share of the time, the compute time per step, ns, and the same without these waits. Ranks
    without readings are left out.
    """
    column_by_rank = {rank: column for column, rank in enumerate(compute_times.ranks)}
    waits = {}
    for core_times in _read_times(trace, compute_times.step_numbers[step_rows]):
        column = column_by_rank.get(core_times.rank)
        work_ns = (
            np.empty(0) if column is None else compute_times.total_compute_ns[step_rows, column]
        )
        if column is None or core_times.ran_ns <= 0 or np.isnan(work_ns).all():
            continue
        work_per_step_ns = float(np.nanmean(work_ns))
        ready_ns = max(core_times.ran_ns + core_times.queued_ns, float(np.nansum(work_ns)))
        undisturbed_ns = work_per_step_ns * (1 - core_times.queued_ns / ready_ns)
        wait_share = core_times.queued_ns / core_times.steps_ns
        waits[column] = wait_share, work_per_step_ns, undisturbed_ns
    return waits


@dataclass(frozen=True)
class _TimesInSteps:
    """How long a rank's main thread ran, and queued for a core, in some steps that last `steps_ns`.

    `between_readings_ns` lies between the readings around them: it counts as if all of it were alike.
    """

    rank: int
    steps_ns: float
    ran_ns: float
    queued_ns: float
    between_readings_ns: float

    @property
    def are_resolved(self) -> bool:
        """Whether the readings cover mostly these steps."""
        return self.steps_ns >= MIN_SHARE_OF_TIME_READ * self.between_readings_ns


def _read_times(trace: Trace, step_numbers: Ints) -> Iterator[_TimesInSteps]:
    """Yield the times, from the first step to the last, of each rank that has two readings.

    `step_numbers` are those of the steps.
    """
    readings = trace.clocks.drop_nulls(["ran_ns", "queued_ns"])
    if readings.is_empty() or not len(step_numbers):
        return
    readings_by_process = {int(process): rows for (process,), rows in readings.group_by("process")}
    main_threads = trace.threads.filter(name=_MAIN).select("process", training_thread="thread")
    first_step, last_step = int(step_numbers.min()), int(step_numbers.max())
    selected = trace.steps.filter(pl.col("step").is_between(first_step, last_step))
    extents = selected.group_by("process").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    workers = trace.workers.join(main_threads, on=["process", "training_thread"])
    workers = workers.join(extents, on="process")
    for process, rank, *edges_ns in workers.select(
        "process", "rank", "start_ns", "end_ns"
    ).iter_rows():
        if process in readings_by_process and readings_by_process[process].height > 1:
            core_times = _interpolate(
                rank,
                readings_by_process[process],
                trace.clock_maps.get(process),
                np.array(edges_ns, np.int64),
            )
            if core_times.steps_ns > 0:
                yield core_times


def _interpolate(
    rank: int, readings: pl.DataFrame, clock_map: ClockMap | None, edges_ns: Ints
) -> _TimesInSteps:
    """Interpolate the times that a rank ran and queued between two times, as far as readings reach.

    `readings` has one row per reading: its time, and the sums of `ran_ns` and `queued_ns` until then.
    `edges_ns` are the two times, on the common clock; `clock_map` brings readings to it.
    """
    times_ns = readings["monotonic_ns"].to_numpy()
    times_ns = clock_map.to_common_ns(times_ns) if clock_map else times_ns
    first_ns, last_ns = np.clip(edges_ns, times_ns[0], times_ns[-1])
    ran_ns, queued_ns = (
        np.diff(
            np.interp((first_ns, last_ns), times_ns, readings[name].to_numpy().astype(np.float64))
        )
        for name in ("ran_ns", "queued_ns")
    )
    between_readings_ns = times_ns[min(np.searchsorted(times_ns, last_ns), len(times_ns) - 1)]
    between_readings_ns -= times_ns[max(np.searchsorted(times_ns, first_ns, side="right") - 1, 0)]
    return _TimesInSteps(
        rank,
        steps_ns=float(last_ns - first_ns),
        ran_ns=float(ran_ns[0]),
        queued_ns=float(queued_ns[0]),
        between_readings_ns=float(between_readings_ns),
    )
