"""Congestion: transfers that are slow for all ranks in parts of the run, against the run's own best.

Each step's collectives are compared with what they usually take. Slow steps follow each other in
episodes, in which computation does not slow down (docs/analyses/collectives-and-links.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication import transfers
from tracelens.accounting.compute_time import WARM_UP
from tracelens.accounting.core_waits import is_machine_busy
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.pricing import price_faster_calls
from tracelens.schema.vocabulary import USEFUL_KINDS
from tracelens.stats.changepoint import find_greatest_run, mark_runs
from tracelens.stats.robust import join_intervals, measure_deviation, medians

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import Carrier
    from tracelens.replay.pricing import TransferPrice
    from tracelens.replay.windows import WindowedReplay

# of the job: congestion that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_CONGESTION: Final = 0.01
# times: a communicator is slow if its calls take as many times as long as outside [calibrate]
MIN_RATIO_OF_SLOW_COMMUNICATOR: Final = 1.5
# calls: those of a rarer size are compared with calls of about that size [calibrate]
MIN_CALLS_OF_SIZE: Final = 16
# steps: fewer have no room for an episode and its baseline [calibrate]
MIN_STEPS_TO_SEARCH_EPISODES: Final = 32
# times: steps of an episode take as many times as long as usual [calibrate]
MIN_RATIO_OF_EPISODE: Final = 1.5
# standard deviations: an episode is as far beyond what is usual [calibrate]
MIN_Z_SCORE_OF_EPISODE: Final = 6.0
# steps: fewer outside of episodes do not show what is usual [calibrate]
MIN_STEPS_OUTSIDE_EPISODES: Final = 16
# share: nothing is reported if fewer steps outside of episodes are usual [calibrate]
MIN_SHARE_OF_USUAL_STEPS_OUTSIDE: Final = 0.9
CORRELATED_STEPS_OUTSIDE_EPISODES: Final = 3  # steps: as many neighbours count as one [chosen]
MIN_STEPS_OF_LOWEST_LEVEL: Final = 16  # steps: the lowest level lasts as long [calibrate]
MIN_RATIO_OF_LEVELS: Final = 1.5  # times: levels whose ratio is smaller are one [calibrate]
# share: two levels that explain less of the variance are one [calibrate]
MIN_SHARE_OF_VARIANCE_BETWEEN_LEVELS: Final = 0.75
# share: as many steps of an episode are slow [calibrate]
MIN_SHARE_OF_SLOW_STEPS_IN_EPISODE: Final = 0.9
MIN_STEPS_OF_EPISODE: Final = 16  # steps: what is slow for fewer is no episode [calibrate]
# share of the transfers' slowdown: if computation slows down by more, the machine is
# slow, not the network [calibrate]
MAX_SHARE_OF_SLOWDOWN_IN_COMPUTE: Final = 0.25
MIN_SHARE_OF_STEPS_IF_LASTING: Final = 0.6  # share: congestion in fewer steps is transient [chosen]


@dataclass(frozen=True, eq=False)
class _SlowSteps:
    """Which rows (steps) have slow transfers, and how many times as long as usual a median one takes.

    `episode_rows` are the first and last row of each episode; the error is that of the usual time.
    """

    is_slow_step: Flags
    time_ratio: float
    episode_rows: tuple[tuple[int, int], ...]
    relative_error: float


def find_congestion(facts: Facts, calls: pl.DataFrame, *, has_messages: bool) -> list[Finding]:
    """Search the run for congestion; `has_messages`: messages between ranks were recorded."""
    run_ns = job_ns(facts.trace)
    by_communicator = _compare_with_usual(calls)
    by_step = by_communicator.group_by("step").agg(pl.col("wire_ns", "usual_ns").sum()).sort("step")
    steps = by_step["step"].to_numpy().astype(np.int64)
    slow = _find_episodes((by_step["wire_ns"] / by_step["usual_ns"]).to_numpy())
    ratios = _measure_ratios(by_communicator, steps, slow) if slow else {}
    if slow is None or not ratios or _compute_slows_down(facts.phases, steps, slow):
        return []
    slow_steps, margin = steps[slow.is_slow_step], TWO_SIDED * slow.relative_error
    price = _price_usual(facts.replay, calls, slow_steps, ratios)
    saving = float(price.saved_ns_by_step.sum()) / run_ns
    if saving < MIN_SAVING_TO_REPORT_CONGESTION:
        return []
    low_saving, high_saving = (
        float(_price_usual(facts.replay, calls, slow_steps, ratios, usual).saved_ns_by_step.sum())
        / run_ns
        for usual in (1 + margin, 1 - margin)
    )
    ranks = _list_some_ranks(facts.trace, ratios)
    time_ratio = float(np.median(np.concatenate([*ratios.values()])))
    steps_text, pattern = _describe_steps(steps, slow)
    unknown_link = "collectives do not tell which link"
    # Ranks that wait for cores transfer as slowly, unless they are on several hosts.
    is_on_one_host = facts.trace.workers["host"].n_unique() == 1
    may_be_busy = is_on_one_host and is_machine_busy(facts.core_wait_share or 0.0)
    return [
        Finding.of(
            "congestion",
            {
                "who": fmt.listing("rank", ranks) if ranks else "all ranks",
                "steps": steps_text,
                "ratio": f"{time_ratio:.1f}",
                "link": "no single link is the cause" if has_messages else unknown_link,
            },
            category="opportunity" if may_be_busy else "fault",
            phase="reduction",
            pattern=pattern,
            steps=(int(slow_steps[0]), int(slow_steps[-1])),
            ranks=ranks,
            slowdown=time_ratio,
            saving=saving,
            interval=join_intervals(
                saving, price.measure_interval(run_ns), (low_saving, high_saving)
            ),
            fix=price.fix,
            evidence={
                "times_as_long": time_ratio,
                "steps_slow": len(slow_steps),
                "episodes": [[int(steps[row]) for row in edges] for edges in slow.episode_rows],
                "link_identifiable": False,
            },
        )
    ]


def _price_usual(
    replay: WindowedReplay,
    calls: pl.DataFrame,
    step_numbers: Ints,
    ratios: dict[str, Floats],
    usual_ratio: float = 1.0,
) -> TransferPrice:
    """Price that slow calls take `usual_ratio` times the usual time in some steps.

    `ratios` say how many times that they take now, by communicator, [step]; `calls` has a row each.
    """
    time_ratios: dict[Carrier, Floats] = {
        communicator: np.minimum(usual_ratio / np.maximum(ratio, 1.0), 1.0)
        for communicator, ratio in ratios.items()
    }
    lost_ns = np.zeros(len(step_numbers))
    for communicator, time_ratio in time_ratios.items():
        communicator_calls = calls.filter(pl.col("communicator").cast(pl.String) == communicator)
        lost_ns += transfers.measure_wire_ns(communicator_calls, step_numbers) * (1 - time_ratio)
    return price_faster_calls(
        replay, TransferFix(step_numbers=step_numbers, ratios_by_carrier=time_ratios), lost_ns
    )


def _measure_ratios(
    by_communicator: pl.DataFrame, step_numbers: Ints, slow: _SlowSteps
) -> dict[str, Floats]:
    """Return the ratio of calls' time to the usual time, [slow step], by slow communicator.

    `by_communicator` has a row per communicator and step; `step_numbers` are those of all steps.
    """
    ratios = {}
    tables = by_communicator.partition_by("communicator", as_dict=True)
    for (communicator,), by_step in tables.items():
        ratio = np.full(len(step_numbers), np.nan)
        ratio[np.searchsorted(step_numbers, by_step["step"])] = (
            by_step["wire_ns"] / by_step["usual_ns"]
        )
        usual_ratio, slow_ratio = (
            float(medians(ratio[is_chosen], axis=0))
            for is_chosen in (~slow.is_slow_step, slow.is_slow_step)
        )
        if slow_ratio >= MIN_RATIO_OF_SLOW_COMMUNICATOR * usual_ratio:
            ratios[str(communicator)] = np.nan_to_num(
                ratio[slow.is_slow_step] / usual_ratio, nan=1.0
            )
    return ratios


def _compare_with_usual(calls: pl.DataFrame) -> pl.DataFrame:
    """Sum the time `wire_ns` and the usual time `usual_ns` of calls: a row per communicator and step.

    Calls of a rare size are compared with those of about its size, within a factor of 1.4.
    """
    alike_columns = ("communicator", "op")
    is_rare = pl.len().over(*alike_columns, "bytes") < MIN_CALLS_OF_SIZE
    size_bytes = pl.col("bytes").fill_null(-1)
    size_class = -2 - (pl.col("bytes") + 1).log(2).mul(2).round().cast(pl.Int64)
    return (
        calls.with_columns(
            size=pl.when(is_rare & (size_bytes >= 0)).then(size_class).otherwise(size_bytes)
        )
        .with_columns(usual_ns=pl.col("wire_ns").median().over(*alike_columns, "size"))
        .filter(pl.col("step") >= 0)
        .group_by(pl.col("communicator").cast(pl.String), "step")
        .agg(pl.col("wire_ns", "usual_ns").sum())
    )


def _find_episodes(time_ratios: Floats) -> _SlowSteps | None:
    """Search for episodes; `time_ratios` is how many times as long as usual transfers take, [step].

    None without any, or where too few steps outside of them show what is usual.
    """
    if len(time_ratios) < MIN_STEPS_TO_SEARCH_EPISODES + WARM_UP:
        return None
    lowest_ratio, spread = _find_lowest_level(time_ratios[WARM_UP:])
    min_rise = max((MIN_RATIO_OF_EPISODE - 1) * lowest_ratio, MIN_Z_SCORE_OF_EPISODE * spread)
    is_slow = time_ratios > lowest_ratio + min_rise / 2
    is_slow[:WARM_UP] = False
    episode_rows = _join_slow_steps(is_slow)
    is_inside = mark_runs(episode_rows, len(time_ratios))
    is_outside = ~is_inside
    is_outside[:WARM_UP] = False
    if not episode_rows or is_outside.sum() < MIN_STEPS_OUTSIDE_EPISODES:
        return None
    slow_ratio = float(np.median(time_ratios[is_inside]))
    has_slow_outside = np.mean(is_slow[is_outside]) > 1 - MIN_SHARE_OF_USUAL_STEPS_OUTSIDE
    if has_slow_outside or slow_ratio < lowest_ratio + min_rise:
        return None
    usual_ratio = float(np.median(time_ratios[is_outside]))
    independent_steps = is_outside.sum() / CORRELATED_STEPS_OUTSIDE_EPISODES
    relative_deviation = measure_deviation(time_ratios[is_outside] - usual_ratio) / usual_ratio
    return _SlowSteps(
        is_slow_step=is_inside,
        time_ratio=slow_ratio / usual_ratio,
        episode_rows=episode_rows,
        relative_error=float(relative_deviation / np.sqrt(independent_steps)),
    )


def _find_lowest_level(time_ratios: Floats) -> tuple[float, float]:
    """Return the lowest level of the ratio, [step], that lasts, and its steps' standard deviation.

    Steps are divided where logarithms differ most (Otsu 1979), and the lower ones again.
    """
    log_ratio = np.sort(np.log(time_ratios))
    while len(log_ratio) > MIN_STEPS_OF_LOWEST_LEVEL:
        lower_count = np.arange(1, len(log_ratio))  # for each place where steps may be divided
        upper_count, lower_sum = lower_count[::-1], np.cumsum(log_ratio)[:-1]
        difference = lower_sum / lower_count - (log_ratio.sum() - lower_sum) / upper_count
        variance_between = lower_count * upper_count * difference**2 / len(log_ratio) ** 2
        cut = int(variance_between.argmax()) + 1
        level_difference = np.median(log_ratio[cut:]) - np.median(log_ratio[:cut])
        is_one_level = level_difference < np.log(MIN_RATIO_OF_LEVELS) or (
            variance_between.max() < MIN_SHARE_OF_VARIANCE_BETWEEN_LEVELS * np.var(log_ratio)
        )
        if cut < MIN_STEPS_OF_LOWEST_LEVEL or is_one_level:
            break
        log_ratio = log_ratio[:cut]
    lowest_ratios = np.exp(log_ratio)
    level = float(np.median(lowest_ratios))
    return level, measure_deviation(lowest_ratios - level)


def _join_slow_steps(is_slow: Flags) -> tuple[tuple[int, int], ...]:
    """Return the first and last row of runs in which nearly all steps are slow; flags are [step]."""
    cost = MIN_SHARE_OF_SLOW_STEPS_IN_EPISODE  # of a step: a run gains with more slow ones
    gains = np.where(is_slow, 1 - cost, -cost)
    episode_rows: list[tuple[int, int]] = []
    while True:
        first_row, last_row = find_greatest_run(gains)
        if last_row - first_row + 1 < MIN_STEPS_OF_EPISODE or not is_slow[first_row]:
            return tuple(sorted(episode_rows))
        episode_rows.append((first_row, last_row))
        gains[first_row : last_row + 1] = -cost


def _compute_slows_down(phases: Phases, step_numbers: Ints, slow: _SlowSteps) -> bool:
    """Return True if computation slows down in slow steps.

    `step_numbers`, [step], are the numbers of the steps that `slow` flags.
    """
    compute_times = phases.pieces.step_windows.select(
        "step", ns=phases.sum_ns_by_window(*USEFUL_KINDS)
    )
    by_step = compute_times.filter(pl.col("ns") > 0).group_by("step").agg(pl.col("ns").median())
    slow_ns, usual_ns = (
        by_step.filter(pl.col("step").is_in(step_numbers[is_chosen]))["ns"].to_numpy()
        for is_chosen in (slow.is_slow_step, ~slow.is_slow_step)
    )
    if not len(slow_ns) or not len(usual_ns):
        return False
    ratio = np.median(slow_ns) / np.median(usual_ns)
    return bool(ratio - 1 > MAX_SHARE_OF_SLOWDOWN_IN_COMPUTE * (slow.time_ratio - 1))


def _list_some_ranks(trace: Trace, communicators: Iterable[str]) -> tuple[int, ...]:
    """Return the ranks of some communicators; none where these are all."""
    grids = [grid for grid in trace.calls if grid.communicator_uid in communicators]
    ranks = {rank for grid in grids for rank in grid.ranks.tolist()}
    return () if len(ranks) == trace.workers.height else tuple(sorted(ranks))


def _describe_steps(step_numbers: Ints, slow: _SlowSteps) -> tuple[str, Pattern]:
    """Describe the slow steps in words, and name their pattern."""
    slow_steps = step_numbers[slow.is_slow_step]
    steps_text = fmt.steps(int(slow_steps[0]), int(slow_steps[-1]))
    if len(slow.episode_rows) > 1:
        return f"{len(slow_steps)} of {steps_text} (in {len(slow.episode_rows)} episodes)", "sparse"
    lasts = len(slow_steps) >= MIN_SHARE_OF_STEPS_IF_LASTING * len(step_numbers)
    return steps_text, "persistent" if lasts else "transient"
