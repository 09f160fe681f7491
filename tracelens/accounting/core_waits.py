"""What of a straggler's delay is waiting for a core: of a busy machine, or too many threads for it.

The recorder reads now and then for how long the kernel let a process's main thread run, and for how
long it was ready to run and waited in a run queue (`queued_ns`). A thread that waits actively, as in
MPI, does so in its waits as well, so the time in run queues is taken as spread evenly over the time in
which it was ready. A rank whose work is longer than its peers' with this time, and is not without it,
is no slow one; one that has more to do has it with and without.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    """Share of the time in which late ranks waited for a core, and the `usual` share.

    That is what peers did, or all ranks at other times. `explains` is the share of the delay that is
    gone without it, and `left` what is not, as a share of the usual work; null where times were read too
    seldom to tell these steps from others.
    """

    share: float
    usual: float
    explains: float | None
    left: float | None

    @property
    def is_cause(self) -> bool:
        """Whether there is hardly a delay without it; a bit more, where all wait by chance."""
        if self.explains is None or self.left is None:
            return False
        little_left = self.left < MAX_DELAY_LEFT_IF_CAUSE
        is_common = self.usual >= MIN_SHARE_OF_TIME_PEERS_WAIT
        return self.explains >= MIN_SHARE_OF_DELAY_IF_CAUSE or (little_left and is_common)

    @property
    def may_be_cause(self) -> bool:
        """Whether it is the cause, or as much was waited as could be, and it was not read when."""
        waited_long = self.share >= MIN_SHARE_OF_TIME_IF_MAYBE_CAUSE
        return self.is_cause or (self.explains is None and waited_long)

    @property
    def is_common(self) -> bool:
        """Whether peers waited for cores as well, so that it is chance who did so most."""
        return self.is_cause and self.usual >= MIN_RATIO_OF_WAITS_IF_COMMON * self.share

    def sentences(self, ranks: str, others: str) -> list[str]:
        """Describe it in sentences, where it explains a good part of the delay, or may do so."""
        share, peers_share = fmt.percent(self.share), fmt.percent(self.usual)
        waited = f"{fmt.capital(ranks)} waited for a core for {share} of the time"
        if self.explains is None:
            reason = "whether more in these steps than in others was not read"
            return [f"{waited}; {reason}."] if self.may_be_cause else []
        if self.explains < MIN_SHARE_OF_DELAY_TO_REPORT and not self.is_cause:
            return []
        explains = f"that explains {fmt.percent(self.explains)} of the delay"
        return [f"{waited}, {others} for {peers_share}: {explains}."]

    def evidence(self) -> dict[str, Any]:
        """Return it as numbers."""
        return asdict(self) | {"is_cause": self.is_cause}


def measure_core_wait(
    trace: Trace, times: ComputeTime, ranks: tuple[int, ...], rows: slice
) -> CoreWait | None:
    """Measure how long late ranks (columns), and their peers, waited for a core in some steps (rows).

    None where that was not read.
    """
    columns = [*ranks, *times.compared_with(ranks).tolist()]
    waited = _measure_waits(trace, times, rows)
    waits = [waited.get(column) for column in columns]
    known_waits = [wait for wait in waits if wait is not None]
    count = len(ranks)
    if len(known_waits) < len(waits) or len(known_waits) == count:
        return None
    shares, work_ns, undisturbed_ns = np.array(known_waits).T
    peers_ns, peers_undisturbed_ns = (
        float(np.median(ns[count:])) for ns in (work_ns, undisturbed_ns)
    )
    if peers_ns <= 0 or peers_undisturbed_ns <= 0:
        return None
    delay_share = work_ns[:count] / peers_ns - 1
    share_left = np.maximum(undisturbed_ns[:count] / peers_undisturbed_ns - 1, 0.0)
    explains = 1 - share_left / delay_share if (delay_share > 0).all() else np.zeros(count)
    return CoreWait(
        share=float(shares[:count].max()),
        usual=float(np.median(shares[count:])),
        explains=float(np.clip(explains.min(), 0.0, 1.0)),
        left=float(share_left.max()),
    )


def measure_core_wait_of_all(
    trace: Trace, times: ComputeTime, rows: Indices, extra_ns: float
) -> CoreWait | None:
    """Compare the waits of all ranks for a core in some steps (rows) with those of the whole run.

    In these they take `extra_ns` a step longer. None where it was not read. Of steps that are scattered
    over the run it is not known what was waited in them alone.
    """
    all_rows, row_range = slice(0, len(times.steps)), slice(int(rows[0]), int(rows[-1]) + 1)
    waits_inside, waits_in_all = (
        _measure_waits(trace, times, selected_rows) for selected_rows in (row_range, all_rows)
    )
    known_waits = [
        (*waits_inside[column], *waits_in_all[column])
        for column in sorted(waits_inside.keys() & waits_in_all)
    ]
    if not known_waits or extra_ns <= 0:
        return None
    share, _, _, share_in_all, work_ns, _ = np.median(np.array(known_waits), axis=0)
    is_lasting = row_range.stop - row_range.start == len(rows)
    if not is_lasting or not all(
        one.resolved for one in _read_times(trace, times.steps[row_range])
    ):
        return CoreWait(float(share), float(share_in_all), None, None)
    step_ns = float(np.median(times.length[times.settled_rows]))
    extra_wait_ns = share * (step_ns + extra_ns) - share_in_all * step_ns
    explains = float(np.clip(extra_wait_ns / extra_ns, 0.0, 1.0))
    share_left = (1 - explains) * extra_ns / max(float(work_ns), 1.0)
    return CoreWait(float(share), float(share_in_all), explains, share_left)


def is_busy(core_wait: float) -> bool:
    """Return True if ranks wait for cores too long to tell which one computes slowly.

    `core_wait` is that of the run, as a share of the time of steps.
    """
    return core_wait >= MIN_WAIT_FOR_CORES_IF_BUSY


def measure_core_wait_of_run(trace: Trace) -> float | None:
    """Return for what share of the time of their steps ranks waited for a core, on average.

    None where that was not read of any, or there are no steps.
    """
    shares = [
        times.queued / times.took for times in _read_times(trace, trace.steps["step"].to_numpy())
    ]
    return float(np.mean(shares)) if shares else None


def measure_ready_shares(trace: Trace) -> dict[int, float]:
    """Return for what share of the time of its steps each rank ran or waited for a core, where read."""
    readings = _read_times(trace, trace.steps["step"].to_numpy())
    return {times.rank: (times.ran + times.queued) / times.took for times in readings}


def _measure_waits(
    trace: Trace, compute: ComputeTime, rows: slice
) -> dict[int, tuple[float, float, float]]:
    """Measure the share of the time that ranks waited for a core in some steps, by column.

    Beside it is their work per step, nanoseconds, with and without that. A rank is left out where it
    was not read.
    """
    column_of = {rank: column for column, rank in enumerate(compute.ranks)}
    waits = {}
    for times in _read_times(trace, compute.steps[rows]):
        column = column_of.get(times.rank)
        work_ns = compute.total[rows, column] if column is not None else np.empty(0)
        if column is None or times.ran <= 0 or np.isnan(work_ns).all():
            continue
        step_ns, ready_ns = (
            float(np.nanmean(work_ns)),
            max(times.ran + times.queued, float(np.nansum(work_ns))),
        )
        undisturbed_ns = step_ns * (1 - times.queued / ready_ns)
        waits[column] = times.queued / times.took, step_ns, undisturbed_ns
    return waits


@dataclass(frozen=True)
class _TimesInSteps:
    """How long a rank's main thread ran and queued in some steps, which took `took`, nanoseconds.

    `around` is the time between the readings around them: all of it counts as if it were alike.
    """

    rank: int
    took: float
    ran: float
    queued: float
    around: float

    @property
    def resolved(self) -> bool:
        """Whether the readings cover mostly these steps."""
        return self.took >= MIN_SHARE_OF_TIME_READ * self.around


def _read_times(trace: Trace, steps: Ints) -> Iterator[_TimesInSteps]:
    """Yield what was read of ranks that train in their main thread, from the first to the last step."""
    recorded = trace.clocks.drop_nulls(["ran_ns", "queued_ns"])
    if recorded.is_empty() or not len(steps):
        return
    readings = {int(process): part for (process,), part in recorded.group_by("process")}
    main_threads = trace.threads.filter(name=_MAIN).select("process", training_thread="thread")
    selected = trace.steps.filter(pl.col("step").is_between(steps.min(), steps.max()))
    extents = selected.group_by("process").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    on_main = trace.workers.join(main_threads, on=["process", "training_thread"])
    on_main = on_main.join(extents, on="process")
    for process, rank, *edges in on_main.select(
        "process", "rank", "start_ns", "end_ns"
    ).iter_rows():
        if process in readings and readings[process].height > 1:
            times = _interpolate(
                rank, readings[process], trace.clock_maps.get(process), np.array(edges, np.int64)
            )
            if times.took > 0:
                yield times


def _interpolate(
    rank: int, recorded: pl.DataFrame, clock_map: ClockMap | None, edges: Ints
) -> _TimesInSteps:
    """Interpolate the readings of a rank between two times, as far as they reach."""
    times_ns = recorded["monotonic_ns"].to_numpy()
    times_ns = clock_map.apply(times_ns) if clock_map else times_ns
    first_ns, last_ns = np.clip(edges, times_ns[0], times_ns[-1])
    ran_ns, queued_ns = (
        np.diff(
            np.interp((first_ns, last_ns), times_ns, recorded[name].to_numpy().astype(np.float64))
        )
        for name in ("ran_ns", "queued_ns")
    )
    between_readings_ns = times_ns[min(np.searchsorted(times_ns, last_ns), len(times_ns) - 1)]
    between_readings_ns -= times_ns[max(np.searchsorted(times_ns, first_ns, side="right") - 1, 0)]
    return _TimesInSteps(
        rank,
        float(last_ns - first_ns),
        float(ran_ns[0]),
        float(queued_ns[0]),
        float(between_readings_ns),
    )
