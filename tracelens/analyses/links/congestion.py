"""Congestion: transfers that are slow for all ranks in parts of the run, against the run's own best.

Each collective's time on the wire is compared with what calls of the same operation and payload usually
take, and each step's sum with the lowest level of the run that lasts. Steps that are slow follow each
other in episodes; outside of these few are, and computation must not slow down with them, or it is the
machine and not the network. Each step loses by its own slowness, however that varies in an episode and
from one to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication import transfers
from tracelens.accounting.compute_time import WARM_UP
from tracelens.accounting.phases import job_ns
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.pricing import price_faster_calls
from tracelens.schema.vocabulary import USEFUL_KINDS
from tracelens.stats.changepoint import greatest_run
from tracelens.stats.robust import deviation, join_intervals, medians

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.links import Carrier
    from tracelens.replay.pricing import TransferPrice
    from tracelens.replay.windows import WindowedReplay

__all__ = ["findings"]

# of the job: congestion that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_CONGESTION: Final = 0.01
# times: a communicator is slow if its calls take as many times as long as outside [calibrate]
MIN_RATIO_OF_SLOW_COMMUNICATOR: Final = 1.5
# calls: those of a rarer size are compared with calls of about that size [calibrate]
MIN_CALLS_OF_SIZE: Final = 16
# steps: fewer have no room for an episode and for what is usual [calibrate]
MIN_STEPS_TO_SEARCH_EPISODES: Final = 32
# times: steps of an episode take as many times as long as usual [calibrate]
MIN_RATIO_OF_EPISODE: Final = 1.5
# standard deviations: an episode is as far beyond what is usual [calibrate]
MIN_Z_SCORE_OF_EPISODE: Final = 6.0
# steps: fewer outside of episodes do not tell what is usual [calibrate]
MIN_STEPS_OUTSIDE_EPISODES: Final = 16
# share: nothing is reported if fewer steps outside of episodes are usual [calibrate]
MIN_SHARE_OF_USUAL_STEPS_OUTSIDE: Final = 0.9
# steps: as many neighbours count as one, since they are correlated [chosen]
CORRELATED_STEPS_OUTSIDE_EPISODES: Final = 3
MIN_STEPS_OF_LOWEST_LEVEL: Final = 16  # steps: the lowest level lasts as long [calibrate]
MIN_RATIO_OF_LEVELS: Final = 1.5  # times: levels whose ratio is smaller are one [calibrate]
# share: two levels that explain less of the variance are one [calibrate]
MIN_SHARE_OF_VARIANCE_BETWEEN_LEVELS: Final = 0.75
# share: as many steps of an episode are slow [calibrate]
MIN_SHARE_OF_SLOW_STEPS_IN_EPISODE: Final = 0.9
MIN_STEPS_OF_EPISODE: Final = 16  # steps: what is slow for fewer is no episode [calibrate]
# share of the transfers' slowdown: the machine is slow, not
# the network, if computation slows down by more [calibrate]
MAX_SHARE_OF_SLOWDOWN_IN_COMPUTE: Final = 0.25
# share: congestion in fewer steps is transient [chosen]
MIN_SHARE_OF_STEPS_IF_LASTING: Final = 0.6


@dataclass(frozen=True, eq=False)
class _Slow:
    """Rows of steps with slow transfer, of which a typical one takes `level` times as long as usual.

    `episodes` are the first and last rows of those that follow each other, `uncertainty` the standard
    error of what is usual, as a share of it.
    """

    inside: Flags
    level: float
    episodes: tuple[tuple[int, int], ...]
    uncertainty: float


def findings(facts: Facts, calls: pl.DataFrame, *, recorded: bool) -> list[Finding]:
    """Search the run for congestion; `recorded` says whether messages between ranks were."""
    trace = facts.trace
    job = job_ns(trace)
    taken = _beside_usual(calls)
    relative = taken.group_by("step").agg(pl.col("wire_ns", "usual").sum()).sort("step")
    steps = relative["step"].to_numpy().astype(np.int64)
    slow = _find((relative["wire_ns"] / relative["usual"]).to_numpy())
    groups = _slow_groups(taken, steps, slow) if slow else {}
    if slow is None or not groups or _compute_slowdown(facts.phases, steps, slow):
        return []
    hit = steps[slow.inside]
    price = _price(facts.replay, calls, hit, groups, 1.0)
    saving = float(price.saved_ns.sum()) / job
    if saving < MIN_SAVING_TO_REPORT_CONGESTION:
        return []
    less, more = (
        float(_price(facts.replay, calls, hit, groups, usual).saved_ns.sum()) / job
        for usual in (1 + TWO_SIDED * slow.uncertainty, 1 - TWO_SIDED * slow.uncertainty)
    )
    ranks, level = _ranks_of(trace, groups), float(np.median(np.concatenate([*groups.values()])))
    when, pattern = _describe_steps(steps, slow)
    return [
        Finding.of(
            "congestion",
            {
                "who": fmt.listing("rank", ranks) if ranks else "all ranks",
                "steps": when,
                "ratio": f"{level:.1f}",
                "link": "no single link is the cause"
                if recorded
                else "collectives do not tell which link",
            },
            phase="reduction",
            pattern=pattern,
            steps=(int(hit[0]), int(hit[-1])),
            ranks=ranks,
            slowdown=level,
            saving=saving,
            interval=join_intervals(saving, price.measure_interval(job), (less, more)),
            fix=price.fix,
            evidence={
                "times_as_long": level,
                "steps_slow": len(hit),
                "episodes": [[int(steps[row]) for row in edges] for edges in slow.episodes],
                "link_identifiable": False,
            },
        )
    ]


def _price(
    replay: WindowedReplay,
    calls: pl.DataFrame,
    steps: Ints,
    groups: dict[str, Floats],
    usual: float,
) -> TransferPrice:
    """Price slow calls that take `usual` times what is usual."""
    takes: dict[Carrier, Floats] = {
        uid: np.minimum(usual / np.maximum(ratio, 1.0), 1.0) for uid, ratio in groups.items()
    }
    lost_ns = np.zeros(len(steps))
    for communicator, share in takes.items():
        mine = calls.filter(pl.col("communicator").cast(pl.String) == communicator)
        lost_ns += transfers.wire_of_steps(mine, steps) * (1 - share)
    return price_faster_calls(replay, TransferFix(steps, takes), lost_ns)


def _slow_groups(taken: pl.DataFrame, steps: Ints, slow: _Slow) -> dict[str, Floats]:
    """Return of each communicator that is slow how many times as long as usual, [slow step]."""
    found = {}
    for (uid,), part in taken.partition_by("communicator", as_dict=True).items():
        ratio = np.full(len(steps), np.nan)
        ratio[np.searchsorted(steps, part["step"])] = part["wire_ns"] / part["usual"]
        usual, level = (float(medians(ratio[rows], 0)) for rows in (~slow.inside, slow.inside))
        if level >= MIN_RATIO_OF_SLOW_COMMUNICATOR * usual:
            found[str(uid)] = np.nan_to_num(ratio[slow.inside] / usual, nan=1.0)
    return found


def _beside_usual(calls: pl.DataFrame) -> pl.DataFrame:
    """Return what the calls of each communicator and step take, and what they usually do.

    Calls of a size that is rare are compared with those of about its size, within a factor of 1.4.
    """
    of = ("communicator", "op")
    rare = pl.len().over(*of, "bytes") < MIN_CALLS_OF_SIZE
    size = pl.col("bytes").fill_null(-1)
    about = -2 - (pl.col("bytes") + 1).log(2).mul(2).round().cast(pl.Int64)
    usual = calls.with_columns(size=pl.when(rare & (size >= 0)).then(about).otherwise(size))
    usual = usual.with_columns(usual=pl.col("wire_ns").median().over(*of, "size"))
    return (
        usual.filter(pl.col("step") >= 0)
        .group_by(pl.col("communicator").cast(pl.String), "step")
        .agg(pl.col("wire_ns", "usual").sum())
    )


def _find(ratio: Floats) -> _Slow | None:
    """Look for episodes beyond what is usual."""
    if len(ratio) < MIN_STEPS_TO_SEARCH_EPISODES + WARM_UP:
        return None
    usual, spread = _lowest_level(ratio[WARM_UP:])
    beyond = max((MIN_RATIO_OF_EPISODE - 1) * usual, MIN_Z_SCORE_OF_EPISODE * spread)
    slow = ratio > usual + beyond / 2
    slow[:WARM_UP] = False
    episodes = _episodes(slow)
    inside = np.zeros(len(ratio), np.bool_)
    for first, last in episodes:
        inside[first : last + 1] = True
    outside = ~inside
    outside[:WARM_UP] = False
    if not episodes or outside.sum() < MIN_STEPS_OUTSIDE_EPISODES:
        return None
    if np.mean(slow[outside]) > 1 - MIN_SHARE_OF_USUAL_STEPS_OUTSIDE:
        return None
    if np.median(ratio[inside]) < usual + beyond:
        return None
    usual = float(np.median(ratio[outside]))
    level = float(np.median(ratio[inside])) / usual
    independent_steps = outside.sum() / CORRELATED_STEPS_OUTSIDE_EPISODES
    uncertainty = deviation(ratio[outside] - usual) / usual / np.sqrt(independent_steps)
    return _Slow(inside, level, episodes, float(uncertainty))


def _lowest_level(ratio: Floats) -> tuple[float, float]:
    """Return the lowest level that lasts, and how far its steps deviate.

    Steps are divided in two where logarithms differ most (N. Otsu, A threshold selection method from
    gray-level histograms, 1979), and the lower ones again, as long as there are two levels.
    """
    ordered = np.sort(np.log(ratio))
    while len(ordered) > MIN_STEPS_OF_LOWEST_LEVEL:
        count = np.arange(1, len(ordered))
        below = np.cumsum(ordered)[:-1]
        apart = below / count - (ordered.sum() - below) / count[::-1]
        between = count * count[::-1] * apart**2 / len(ordered) ** 2
        lower = int(between.argmax()) + 1
        log_ratio = np.median(ordered[lower:]) - np.median(ordered[:lower])
        is_apart = log_ratio >= np.log(MIN_RATIO_OF_LEVELS)
        if lower < MIN_STEPS_OF_LOWEST_LEVEL or not is_apart:
            break
        if between.max() < MIN_SHARE_OF_VARIANCE_BETWEEN_LEVELS * np.var(ordered):
            break
        ordered = ordered[:lower]
    values = np.exp(ordered)
    level = float(np.median(values))
    return level, deviation(values - level)


def _episodes(slow: Flags) -> tuple[tuple[int, int], ...]:
    """Return runs of rows, the most of which are slow, in order."""
    cost = MIN_SHARE_OF_SLOW_STEPS_IN_EPISODE
    gains = np.where(slow, 1 - cost, -cost)
    found: list[tuple[int, int]] = []
    while True:
        first, last = greatest_run(gains)
        if last - first + 1 < MIN_STEPS_OF_EPISODE or not slow[first]:
            return tuple(sorted(found))
        found.append((first, last))
        gains[first : last + 1] = -cost


def _compute_slowdown(phases: Phases, steps: Ints, slow: _Slow) -> bool:
    """Return whether computation slows down in the same steps."""
    computed = phases.pieces.steps.select("step", ns=phases.of(*USEFUL_KINDS))
    by_step = computed.filter(pl.col("ns") > 0).group_by("step").agg(pl.col("ns").median())
    inside, outside = (
        by_step.filter(pl.col("step").is_in(steps[rows]))["ns"].to_numpy()
        for rows in (slow.inside, ~slow.inside)
    )
    if not len(inside) or not len(outside):
        return False
    growth = np.median(inside) / np.median(outside)
    return bool(growth - 1 > MAX_SHARE_OF_SLOWDOWN_IN_COMPUTE * (slow.level - 1))


def _ranks_of(trace: Trace, groups: Iterable[str]) -> tuple[int, ...]:
    """Return the ranks of some communicators; none where these are all."""
    slow = {rank for grid in trace.calls if grid.uid in groups for rank in grid.ranks.tolist()}
    return () if len(slow) == trace.workers.height else tuple(sorted(slow))


def _describe_steps(steps: Ints, slow: _Slow) -> tuple[str, Pattern]:
    """Return which steps are slow, in words, and in which pattern."""
    hit = steps[slow.inside]
    when = fmt.steps(int(hit[0]), int(hit[-1]))
    if len(slow.episodes) > 1:
        return f"{len(hit)} of {when} (in {len(slow.episodes)} episodes)", "sparse"
    is_lasting = len(hit) >= MIN_SHARE_OF_STEPS_IF_LASTING * len(steps)
    return when, "persistent" if is_lasting else "transient"
