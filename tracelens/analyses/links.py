"""Links: which of them are slow, and when transfers are slow for all.

A **slow link** is found where messages between two ranks were recorded (`_hops.py`, `_slow_links.py`).
Collectives alone do not tell it: in a ring every rank is as slow as the slowest link, so of such a run
only the transfer that nothing hides is told (`interleaving.py`), or, where it is slow for a while only,
congestion (`_congestion.py`). What mending saves is found by playing the collectives again
(`_replay.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens import words
from tracelens.analyses import _calls, _congestion, _hops, _slow_links
from tracelens.analyses._counterfactual import resampled
from tracelens.analyses._exposed import exposed_transfer
from tracelens.analyses._job import job_ns
from tracelens.analyses._replay import saved
from tracelens.analyses.result import Finding

if TYPE_CHECKING:
    from tracelens.analyses._slow_links import Floats, SlowLink
    from tracelens.analyses.phases import Phases
    from tracelens.trace import Trace

__all__ = ["LINK_COLUMNS", "Links", "run"]

WORTH_SAYING: Final = 0.01  # of the job
SETS_THE_PACE: Final = 0.6  # of the transfer that the link's messages make up
MOST_LINKS: Final = 64  # in a report: the slowest
LINK_COLUMNS: Final[dict[str, pl.DataType]] = {
    "sender": pl.Int32(),
    "receiver": pl.Int32(),
    "sender_host": pl.String(),
    "receiver_host": pl.String(),
    "messages": pl.Int64(),
    "bytes": pl.Int64(),
    "message_ns": pl.Float64(),  # median
    "bandwidth": pl.Float64(),  # median, bytes / ns
}


@dataclass(frozen=True)
class Links:
    """`links` has a row for each pair of ranks that sent messages, the slowest first."""

    links: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"links": self.links.head(MOST_LINKS)}


def run(trace: Trace, phases: Phases) -> Links:
    """Look at messages between ranks, and at collectives over time."""
    hops = _hops.measure(trace)
    job = job_ns(trace)
    if not job:
        return Links(pl.DataFrame(schema=LINK_COLUMNS), ())
    calls = _calls.measure(trace).filter(pl.col("ranks") > 1, pl.col("wire_ns") > 0)
    slow = _slow_links.find(trace, hops)
    found = [_finding(trace, calls, hops, group, phases) for group in _by_rank(slow)]
    told = [finding for finding in found if (finding.saving or 0.0) >= WORTH_SAYING]
    if not told:
        told = _congestion.findings(trace, calls, phases, recorded=not hops.is_empty())
    return Links(_table(trace, hops), tuple(told))


def _table(trace: Trace, hops: pl.DataFrame) -> pl.DataFrame:
    host = trace.workers.select("rank", "host")
    return (
        hops.group_by("sender", "receiver")
        .agg(
            pl.col("bytes").sum(),
            messages=pl.len(),
            message_ns=pl.col("ns").median(),
            bandwidth=(pl.col("bytes") / pl.col("ns").clip(lower_bound=1)).median(),
        )
        .join(host.rename({"host": "sender_host"}), left_on="sender", right_on="rank")
        .join(host.rename({"host": "receiver_host"}), left_on="receiver", right_on="rank")
        .sort("bandwidth", "sender", "receiver")
        .select(pl.col(name).cast(kind) for name, kind in LINK_COLUMNS.items())
    )


def _by_rank(slow: list[SlowLink]) -> list[list[SlowLink]]:
    """Put links together that end in the same rank: they are slow for one reason."""
    groups: list[list[SlowLink]] = []
    for link in sorted(slow, key=lambda one: -float(one.excess_ns.sum())):
        near = [group for group in groups if any(_touch(link, other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), link])
    return groups


def _touch(one: SlowLink, other: SlowLink) -> bool:
    return bool({one.sender, one.receiver} & {other.sender, other.receiver})


def _finding(
    trace: Trace, calls: pl.DataFrame, hops: pl.DataFrame, group: list[SlowLink], phases: Phases
) -> Finding:
    main = max(group, key=lambda one: float(one.excess_ns.sum()))
    lost = _lost(calls, main, phases)
    job = job_ns(trace)
    steps = int(main.steps[0]), int(main.steps[-1])
    inside = hops.filter(pl.col("step").is_between(*steps))
    mine = pl.col("sender").eq(main.sender) & pl.col("receiver").eq(main.receiver)
    here, there = (_typical(inside.filter(part)) for part in (mine, ~mine))
    shared = set.intersection(*({one.sender, one.receiver} for one in group))
    ranks = sorted(shared) if len(group) > 1 and shared else [main.sender, main.receiver]
    hosts = dict(trace.workers.select("rank", "host").iter_rows())
    saving, slowdown = float(lost.sum()) / job, float(np.median(main.ratio))
    return Finding(
        kind="slow_link",
        category="fault",
        ranks=tuple(ranks),
        hosts=tuple(dict.fromkeys(str(hosts[rank]) for rank in ranks)),
        phase="reduction",
        pattern=main.pattern,
        steps=steps,
        slowdown=slowdown,
        saving=saving,
        interval=resampled(lost, job),
        confidence=1 - main.p,
        sentence=(
            f"{_who(group, ranks)} {words.steps(*steps)}: a message takes "
            f"{words.duration(here)}, {slowdown:.1f}x what the same bytes take elsewhere; waiting for "
            f"late ranks is not in it. All reductions are as slow as their slowest link: without "
            f"it the job would be {words.percent(saving)} shorter."
        ),
        evidence={
            "sender": main.sender,
            "receiver": main.receiver,
            "message_ns": here,
            "usual_message_ns": there,
            "slow_links": [[one.sender, one.receiver] for one in group],
            "p_value": main.p,
        },
    )


def _lost(calls: pl.DataFrame, slow: SlowLink, phases: Phases) -> Floats:
    """Return what the slow link costs each of its steps.

    Where its messages make up the collectives' transfer, these take as many times less as it would;
    else they lose at most what the link's messages lose.
    """
    exposed = exposed_transfer(phases, slow.steps)
    wire = calls.group_by("step").agg(pl.col("wire_ns").sum()).sort("step")
    known = dict(wire.iter_rows())
    whole = np.array([known.get(step, 0) for step in slow.steps.tolist()], np.float64)
    if not whole.any():
        return np.minimum(slow.excess_ns, exposed)
    own = slow.excess_ns * slow.ratio / np.maximum(slow.ratio - 1, 1e-9)
    takes = 1 / np.maximum(slow.ratio, 1)
    if np.median(own / np.maximum(whole, 1)) < SETS_THE_PACE:
        takes = np.maximum(takes, 1 - slow.excess_ns / np.maximum(whole, 1))
    return saved(calls, slow.steps, takes, phases)


def _typical(hops: pl.DataFrame) -> float:
    median = hops["ns"].median()
    return median if isinstance(median, float) else 0.0


def _who(group: list[SlowLink], ranks: list[int]) -> str:
    if len(group) == 1:
        return f"The link from rank {group[0].sender} to rank {group[0].receiver} is slow,"
    if len(ranks) == 1:
        return f"All that goes to and from rank {ranks[0]} is slow,"
    return f"{len(group)} links around ranks {ranks[0]} and {ranks[-1]} are slow,"
