"""Links: which of them are slow, and when transfers are slow for all.

A **slow link** is found where messages between two ranks were recorded (`transfers.py`). Collectives
alone do not tell it: in a ring every rank is as slow as the slowest link, so of such a run only the
exposed communication is reported (`interleaving.py`), or, where it is slow for a while only,
congestion (`congestion.py`). What fixing it saves is found by replaying the run
(`replay/pricing.py`).

Links between hosts are compared with each other, and links inside hosts with each other. Each message is
expected to take what messages of its size take; what a link takes beyond the median link of the step, in
shares of a step, is scanned for windows that chance does not explain; of two links, the one beyond the
other (`stats/window_scan.py`). Of few links the median one may be slow itself, so all links of a rank,
and both of two ranks, are compared with the others, too. A link keeps its pace where nothing waits for
its messages. Inside a host, a rank that shares its cores has long messages, too: there a link is slow
only if its ranks have other links, compute as fast as others, and hardly wait for cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.accounting.communication import transfers
from tracelens.accounting.compute_time import WARM_UP
from tracelens.accounting.core_waits import is_busy
from tracelens.accounting.phases import job_ns
from tracelens.analyses.links import congestion
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.pricing import TransferPrice, price_faster_calls
from tracelens.schema.vocabulary import USEFUL_KINDS
from tracelens.stats import window_scan
from tracelens.stats.changepoint import course
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.links import Carrier
    from tracelens.stats.window_scan import Scan

__all__ = ["LINK_COLUMNS", "Links", "run"]

MAX_LINKS_SHOWN: Final = 64  # rows: a report has no more links [policy]
# of the job: a slow link that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_LINK: Final = 0.01
# ratio: keeps a link that is no slower than others from a division by 0 [definition]
ROUNDING_OF_RATIO: Final = 1e-9
# share of the collectives' transfer: a link's messages that take as long make them up [calibrate]
MIN_SHARE_OF_COLLECTIVES_ON_LINK: Final = 0.5
MIN_STEPS_TO_JUDGE_LINKS: Final = 30  # steps: links are not judged by fewer [calibrate]
# probability: chance accuses a link of a healthy run as often [calibrate]
MAX_ERROR_RATE_OF_LINKS: Final = 0.003
# of a step: a link that is delayed less beyond the median one is not slow [calibrate]
MIN_DELAY_OF_LINK: Final = 0.015
# of a step: a link that is delayed more counts as delayed by as much [chosen]
MAX_DELAY_SCANNED: Final = 1.0
# share of all links: the median link may be one of a larger group, which is scanned as one [chosen]
MIN_SHARE_OF_LINKS_IN_GROUP: Final = 0.25
# share of others' computation: a rank is slow, not
# the link, if it computes as much longer [calibrate]
MIN_MORE_COMPUTE_IF_RANK_SLOW: Final = 0.10
# share of the median link's messages: a link with fewer is not judged in that step [calibrate]
MIN_SHARE_OF_MESSAGES_TO_JUDGE_STEP: Final = 0.25
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_LINK_DRIFTS: Final = 0.9
# steps: a link whose time is known in fewer is not slow [chosen]
MIN_STEPS_OF_SLOW_LINK: Final = 3
# times: messages of a slow link take as many times as long as others [calibrate]
MIN_RATIO_OF_SLOW_LINK: Final = 1.5
# times the uncertainty of clocks: a link is not slow if a message loses no more [calibrate]
CLOCK_UNCERTAINTIES_OF_LOSS: Final = 3

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


@dataclass(frozen=True, eq=False)
class Links(DisplayMixin):
    """`links` has a row for each pair of ranks that sent messages, the slowest first."""

    links: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"links": self.links.head(MAX_LINKS_SHOWN)}


def run(facts: Facts) -> Links:
    """Look at messages between ranks, and at collectives over time."""
    trace, hops = facts.trace, facts.messages
    job = job_ns(trace)
    if not job:
        return Links(pl.DataFrame(schema=LINK_COLUMNS), ())
    calls = facts.calls.filter(pl.col("ranks") > 1, pl.col("wire_ns") > 0)
    slow = _find_slow_links(facts, hops)
    found = [_finding(facts, calls, hops, group) for group in _by_rank(slow)]
    least_saving = MIN_SAVING_TO_REPORT_LINK
    reported = [finding for finding in found if (finding.saving or 0.0) >= least_saving]
    if not reported:
        reported = congestion.findings(facts, calls, recorded=not hops.is_empty())
    return Links(_table(trace, hops), tuple(reported))


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


def _by_rank(slow: list[_SlowLink]) -> list[list[_SlowLink]]:
    """Put links together that end in the same rank: they are slow for one reason."""
    groups: list[list[_SlowLink]] = []
    for link in sorted(slow, key=lambda one: -float(one.residual_ns.sum())):
        ends = {link.sender, link.receiver}
        near = [
            group for group in groups if any(ends & {one.sender, one.receiver} for one in group)
        ]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), link])
    return groups


def _finding(
    facts: Facts, calls: pl.DataFrame, hops: pl.DataFrame, group: list[_SlowLink]
) -> Finding:
    trace = facts.trace
    group = sorted(group, key=lambda link: -float(link.residual_ns.sum()))
    main, job = group[0], job_ns(trace)
    steps = int(main.steps[0]), int(main.steps[-1])
    inside = hops.filter(pl.col("step").is_between(*steps))
    mine = pl.col("sender").eq(main.sender) & pl.col("receiver").eq(main.receiver)
    local_ns, there = (_typical(inside.filter(part)) for part in (mine, ~mine))
    is_of_collectives = bool(inside.filter(mine)["hop"].any())
    price = _price(facts, calls, group, is_of_collectives=is_of_collectives)
    shared = set.intersection(*({one.sender, one.receiver} for one in group))
    ranks = sorted(shared) if len(group) > 1 and shared else [main.sender, main.receiver]
    hosts = dict(trace.workers.select("rank", "host").iter_rows())
    saving, slowdown = float(price.saved_ns.sum()) / job, float(np.median(main.ratio))
    return Finding.of(
        "slow_link",
        {
            "who": _subject(hops, group, ranks),
            "steps": fmt.steps(*steps),
            "message": fmt.duration(local_ns),
            "ratio": f"{slowdown:.1f}",
        },
        ranks=tuple(ranks),
        hosts=tuple(dict.fromkeys(str(hosts[rank]) for rank in ranks)),
        phase="reduction",
        pattern=main.pattern,
        steps=steps,
        slowdown=slowdown,
        saving=saving,
        interval=price.measure_interval(job),
        confidence=1 - main.p,
        fix=price.fix,
        evidence={
            "sender": main.sender,
            "receiver": main.receiver,
            "message_ns": local_ns,
            "usual_message_ns": there,
            "slow_links": [[one.sender, one.receiver] for one in group],
            "p_value": main.p,
        },
    )


def _price(
    facts: Facts, calls: pl.DataFrame, group: list[_SlowLink], *, is_of_collectives: bool
) -> TransferPrice:
    """Price slow links: their messages take no longer than others, and collectives over them neither."""
    main = group[0]
    whole_ns = transfers.wire_of_steps(calls, main.steps)
    if is_of_collectives and whole_ns.any():
        takes = _measure_share_of_collectives(main, whole_ns)
        every = dict.fromkeys(calls["communicator"].cast(pl.String).unique(), takes)
        return price_faster_calls(
            facts.replay, TransferFix(main.steps, every), whole_ns * (1 - takes)
        )
    steps = np.unique(np.concatenate([link.steps for link in group]))
    takes_by_link: dict[Carrier, Floats] = {}
    lost_ns = np.zeros(len(steps))
    for link in group:
        rows = np.searchsorted(steps, link.steps)
        lost_ns[rows] += link.residual_ns
        shares = takes_by_link[link.sender, link.receiver] = np.ones(len(steps))
        shares[rows] = 1 / np.maximum(link.ratio, 1)
    return price_faster_calls(facts.replay, TransferFix(steps, takes_by_link), lost_ns)


def _measure_share_of_collectives(slow: _SlowLink, whole_ns: Floats) -> Floats:
    """Return what share of their time collectives take without a slow link, [step].

    Where its messages make up the collectives' transfer, these take as many times less as it would;
    else they lose at most what the link's messages lose.
    """
    own_ns = slow.residual_ns * slow.ratio / np.maximum(slow.ratio - 1, ROUNDING_OF_RATIO)
    takes = 1 / np.maximum(slow.ratio, 1)
    if np.median(own_ns / np.maximum(whole_ns, 1)) < MIN_SHARE_OF_COLLECTIVES_ON_LINK:
        takes = np.maximum(takes, 1 - slow.residual_ns / np.maximum(whole_ns, 1))
    return takes


def _typical(hops: pl.DataFrame) -> float:
    median = hops["ns"].median()
    return median if isinstance(median, float) else 0.0


def _subject(hops: pl.DataFrame, group: list[_SlowLink], ranks: list[int]) -> str:
    if len(group) == 1:
        return f"The link from rank {group[0].sender} to rank {group[0].receiver} is"
    if len(ranks) == 1:
        links = hops.filter(pl.any_horizontal(pl.col(_LINK) == ranks[0])).n_unique(_LINK)
        return f"{'All' if len(group) == links else len(group)} links of rank {ranks[0]} are"
    return f"{len(group)} links around ranks {ranks[0]} and {ranks[-1]} are"


_LINK: Final = ("sender", "receiver")


@dataclass(frozen=True, eq=False)
class _SlowLink:
    """A link, the steps (numbers, ascending) in which it is slow, and by what in each of them.

    `ratio` is how many times as long as others its messages take, `residual_ns` what it loses where that
    is known, else 0; `p` is the chance that it is none.
    """

    sender: int
    receiver: int
    steps: Ints
    ratio: Floats
    residual_ns: Floats
    pattern: Pattern
    p: float


def _find_slow_links(facts: Facts, hops: pl.DataFrame) -> list[_SlowLink]:
    """Search all links: those between hosts, then those inside of them."""
    trace = facts.trace
    length = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    if hops.is_empty() or not isinstance(length, float):
        return []
    host = trace.workers.select("rank", "host")
    ends = hops.join(host, left_on="sender", right_on="rank").join(
        host, left_on="receiver", right_on="rank", suffix="_there"
    )
    apart = pl.col("host").ne_missing(pl.col("host_there"))
    parts = [ends.filter(where) for where in (apart, ~apart)]
    sheets = [_LinkTimes.of(part) for part in parts if not part.is_empty()]
    found = [link for one in sheets for link in _slow_of(one, length, trace.uncertainty_ns)]
    host_of = dict(host.iter_rows())
    between_hosts = [link for link in found if host_of[link.sender] != host_of[link.receiver]]
    if len(between_hosts) == len(found) or is_busy(facts.core_wait or 0.0):
        return between_hosts
    return [
        link
        for link in found
        if link in between_hosts
        or not any(
            _is_slow(rank, link, sheets, facts.phases) for rank in (link.sender, link.receiver)
        )
    ]


def _slow_of(sheet: _LinkTimes, length_ns: float, uncertainty_ns: int) -> list[_SlowLink]:
    """Search links that are alike: each of them, and groups that are a large share of all."""
    steps, count = sheet.ratio.shape
    if steps < MIN_STEPS_TO_JUDGE_LINKS + WARM_UP or count < 2:
        return []
    windows = [_scan_group(sheet, group, length_ns) for group in _find_groups(sheet.links)]
    if count > 2:
        windows += _scan_links(sheet, length_ns)
    holds = window_scan.discoveries(np.array([one.p for one in windows]), MAX_ERROR_RATE_OF_LINKS)
    found: dict[tuple[int, int], _SlowLink] = {}
    for window in (one for one, is_found in zip(windows, holds, strict=True) if is_found):
        members = np.flatnonzero(window.group).tolist() if window.mean >= MIN_DELAY_OF_LINK else []
        slow = [_followed(sheet, window, link, length_ns, uncertainty_ns) for link in members]
        for link in slow if None not in slow else ():
            assert link is not None
            found.setdefault((link.sender, link.receiver), link)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class _Window:
    """The rows of steps in which a `group` of links, flags, is most delayed beyond the others.

    `mean` is by how much, as a share of a step; `p` is how likely chance gives one as bad.
    """

    group: Flags
    first: int
    last: int
    mean: float
    p: float


def _find_groups(links: list[tuple[int, int]]) -> list[Flags]:
    """Return groups that the median link may be one of: all links of a rank, or of a pair of ranks."""
    ends = np.array(links)
    groups = {(ends == rank).any(axis=1).tobytes() for rank in np.unique(ends)}
    groups |= {np.isin(ends, pair).all(axis=1).tobytes() for pair in ends}
    if len(links) == 2:
        groups |= {np.array([first, not first]).tobytes() for first in (True, False)}
    flags = (np.frombuffer(group, np.bool_) for group in sorted(groups))
    return [
        group
        for group in flags
        if MIN_SHARE_OF_LINKS_IN_GROUP * len(links) < group.sum() < len(links)
    ]


def _scan_group(sheet: _LinkTimes, group: Flags, length_ns: float) -> _Window:
    """Compare the mean link of a group with the links that are not in it."""
    residual = _compare_with_step(sheet.measure_delays(~group)[WARM_UP:], length_ns)
    mean, others = residual[:, group].mean(axis=1), residual[:, ~group]
    if others.shape[1] == 1:
        scan, place = window_scan.scan_pair(mean), 1
    else:
        scan, place = window_scan.scan_ranks(np.column_stack([mean, others])), 0
    return _read_window(group, scan, place)


def _scan_links(sheet: _LinkTimes, length_ns: float) -> list[_Window]:
    """Compare each link with all."""
    count = len(sheet.links)
    delays_ns = sheet.measure_delays(np.ones(count, np.bool_))
    residual = _compare_with_step(delays_ns[WARM_UP:], length_ns)
    scan = window_scan.scan_ranks(residual)
    return [_read_window(np.arange(count) == link, scan, link) for link in range(count)]


def _compare_with_step(delays_ns: Floats, length_ns: float) -> Floats:
    """Return delays as shares of a step, cut so that messages of several steps do not hide others."""
    return np.minimum(delays_ns / max(length_ns, 1.0), MAX_DELAY_SCANNED)


def _read_window(group: Flags, scan: Scan, place: int) -> _Window:
    first, last = int(scan.first[place]) + WARM_UP, int(scan.last[place]) + WARM_UP
    return _Window(group, first, last, float(scan.mean[place]), float(scan.p[place]))


def _is_slow(rank: int, link: _SlowLink, sheets: list[_LinkTimes], phases: Phases) -> bool:
    """Return whether a rank of a link computes longer, or has no other link that could say so."""
    links = [ends for sheet in sheets for ends in sheet.links if rank in ends]
    if links == [(link.sender, link.receiver)]:
        return True
    computed = phases.of(*USEFUL_KINDS)
    ranks = phases.pieces.steps["rank"].to_numpy()
    among = phases.there & np.isin(phases.steps[phases.step_places], link.steps)
    mine, others_ns = computed[among & (ranks == rank)], computed[among & (ranks != rank)]
    least_ratio = 1 + MIN_MORE_COMPUTE_IF_RANK_SLOW
    return bool(len(mine) and np.median(mine) > least_ratio * np.median(others_ns))


@dataclass(frozen=True, eq=False)
class _LinkTimes:
    """Links that are alike: `messages` of each, and how long they take, [step, link].

    `ratio` is how many times as long as usual, where usual messages of its sizes take `expected_ns`.
    Where too little `is_known` of a link, both are those of about the nearest step.
    """

    steps: Ints
    links: list[tuple[int, int]]
    messages: Floats
    is_known: Flags
    expected_ns: Floats
    ratio: Floats

    @classmethod
    def of(cls, hops: pl.DataFrame) -> _LinkTimes:
        sums = (
            _add_usual_time(hops)
            .group_by("step", *_LINK)
            .agg(pl.col("ns", "usual").sum(), messages=pl.len())
        )
        steps = sums["step"].unique().sort()
        links = sums.select(_LINK).unique().sort(_LINK)
        cells = steps.to_frame().join(links, how="cross")
        sums = cells.join(sums, on=cells.columns, how="left", maintain_order="left")
        numbers = sums.select(pl.col("ns", "usual", "messages").fill_null(0).cast(pl.Float64))
        taken, expected, messages = numbers.to_numpy().T.reshape(3, len(steps), links.height)
        least = MIN_SHARE_OF_MESSAGES_TO_JUDGE_STEP * np.median(messages, axis=1, keepdims=True)
        known = (expected > 0) & (messages >= least)
        ratio = np.where(known, taken / np.where(known, expected, 1), np.nan)
        expected_ns, ratio = (_fill_unknown(values, known) for values in (expected, ratio))
        rows = steps.to_numpy().astype(np.int64)
        return cls(rows, list(links.iter_rows()), messages, known, expected_ns, ratio)

    def measure_delays(self, usual: Flags) -> Floats:
        """Return by how much each link takes longer than the median one of `usual` links, ns."""
        typical = np.nan_to_num(medians(self.ratio[:, usual], axis=1)[:, None], nan=1.0)
        return np.nan_to_num((self.ratio - typical) * self.expected_ns, nan=0.0)


def _add_usual_time(hops: pl.DataFrame) -> pl.DataFrame:
    """Add the `usual` time of messages of about that size, ns.

    A message takes no longer than a larger one, and no longer in proportion than a smaller one: so sizes
    that a slow link alone carries are compared with others.
    """
    nbytes = pl.col("bytes").fill_null(0) + 1
    hops = hops.with_columns(size=nbytes.log(2).mul(2).round())
    usual = hops.group_by("size").agg(pl.col("ns").median(), nbytes=nbytes.median()).sort("size")
    size = usual["nbytes"].to_numpy()
    bounds = usual["ns"].to_numpy() * np.maximum(size[:, None] / size, 1.0)
    return hops.join(usual.select("size", usual=pl.Series(bounds.min(axis=1))), on="size")


def _fill_unknown(values: Floats, known: Flags) -> Floats:
    """Fill unknown steps of a link with the median of three known ones around the nearest."""
    filled = values.copy()
    for link in np.flatnonzero(~known.all(axis=0)):
        rows = np.flatnonzero(known[:, link])
        if len(rows):
            found = np.pad(values[rows, link], 1, mode="edge")
            medians_of_three = np.median([found[:-2], found[1:-1], found[2:]], axis=0)
            middles = (rows[1:] + rows[:-1]) / 2
            unknown = np.flatnonzero(~known[:, link])
            filled[unknown, link] = medians_of_three[np.searchsorted(middles, unknown)]
    return filled


def _followed(
    sheet: _LinkTimes, window: _Window, link: int, length_ns: float, uncertainty_ns: int
) -> _SlowLink | None:
    """Follow a link from edge to edge; None if messages lose too little, or less than clocks may err."""
    delays_ns = sheet.measure_delays(~window.group)[:, link]
    residual = _compare_with_step(delays_ns, length_ns)
    shape = course(
        residual[WARM_UP:],
        window.first - WARM_UP,
        window.last - WARM_UP,
        better=MAX_DEVIATION_RATIO_IF_LINK_DRIFTS,
    )
    first, last = shape.first + WARM_UP, shape.last + WARM_UP
    if shape.first == 0 and np.median(residual[:WARM_UP]) > shape.level / 2:
        first = 0
    rows = slice(first, last + 1)
    is_known = sheet.is_known[rows, link]
    ratio = sheet.ratio[rows, link] / medians(sheet.ratio[rows, ~window.group], axis=1)
    if (
        is_known.sum() < MIN_STEPS_OF_SLOW_LINK
        or not medians(ratio[is_known], axis=0) >= MIN_RATIO_OF_SLOW_LINK
    ):
        return None
    lost_ns = np.where(is_known, np.maximum(delays_ns[rows], 0), 0.0)
    loss_of_message_ns = lost_ns.sum() / max(sheet.messages[rows, link].sum(), 1)
    if loss_of_message_ns <= CLOCK_UNCERTAINTIES_OF_LOSS * uncertainty_ns:
        return None
    return _SlowLink(
        *sheet.links[link],
        steps=sheet.steps[rows],
        ratio=ratio,
        residual_ns=lost_ns,
        pattern=shape.pattern,
        p=window.p,
    )
