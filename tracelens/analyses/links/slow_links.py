"""Links: which of them are slow, and when transfers are slow for all.

A slow link is found where messages between two ranks were recorded; collectives alone do not show it. Of
few links the median one may be slow itself, so all links of a rank, and both of two ranks, are compared
with the others, too (docs/analyses/collectives-and-links.md).
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
from tracelens.analyses.links.congestion import find_congestion
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.replay.edits.fixes import TransferFix
from tracelens.replay.pricing import TransferPrice, price_faster_calls
from tracelens.schema.vocabulary import USEFUL_KINDS
from tracelens.stats import window_scan
from tracelens.stats.changepoint import fit_course
from tracelens.stats.robust import medians

if TYPE_CHECKING:
    from tracelens.accounting.phases import Phases
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.facts import Facts
    from tracelens.model.findings import Pattern
    from tracelens.model.trace import Trace
    from tracelens.replay.edges import Carrier
    from tracelens.stats.window_scan import Scan

MAX_LINKS_SHOWN: Final = 64  # rows: a report has no more links [policy]
# of the job: a slow link that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_LINK: Final = 0.01
# ratio: keeps a link that is no slower than others from a division by 0 [definition]
ROUNDING_OF_RATIO: Final = 1e-9
# share of the collectives' transfer: if a link's messages take as long, they are all of it [calibrate]
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
# share of others' computation: if a rank computes as much longer, it is slow, not the link [calibrate]
MIN_MORE_COMPUTE_IF_RANK_SLOW: Final = 0.10
# share of the median link's messages: a link with fewer is not judged in that step [calibrate]
MIN_SHARE_OF_MESSAGES_TO_JUDGE_STEP: Final = 0.25
# ratio: a rising line may leave at most this much of the deviation of two levels [calibrate]
MAX_DEVIATION_RATIO_IF_LINK_DRIFTS: Final = 0.9
MIN_STEPS_OF_SLOW_LINK: Final = 3  # steps: a link whose time is known in fewer is not slow [chosen]
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
_ENDS: Final = ("sender", "receiver")


@dataclass(frozen=True, eq=False)
class Links(DisplayMixin):
    """`links` has a row for each pair of ranks that sent messages, the slowest first."""

    links: pl.DataFrame
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"links": self.links.head(MAX_LINKS_SHOWN)}


@dataclass(frozen=True, eq=False)
class _SlowLink:
    """A link, given by its sender and receiver, and the steps (numbers, ascending) in which it is slow.

    `time_ratios` are how many times as long as others its messages take, `lost_ns` what it loses where
    that is known, else 0, both [step]; `p_value` is the probability of chance.
    """

    sender_and_receiver: tuple[int, int]
    step_numbers: Ints
    time_ratios: Floats
    lost_ns: Floats
    pattern: Pattern
    p_value: float


def run(facts: Facts) -> Links:
    """Judge messages between ranks, and collectives over time."""
    trace, messages = facts.trace, facts.message_table
    if not job_ns(trace):
        return Links(pl.DataFrame(schema=LINK_COLUMNS), findings=())
    calls = facts.call_table.filter(pl.col("ranks") > 1, pl.col("wire_ns") > 0)
    groups = _group_by_rank(_find_slow_links(facts, messages))
    findings = [_report_links(facts, calls, messages, group) for group in groups]
    findings = [f for f in findings if (f.saving or 0.0) >= MIN_SAVING_TO_REPORT_LINK]
    if not findings:
        findings = find_congestion(facts, calls, has_messages=not messages.is_empty())
    return Links(links=_summarise_links(trace, messages), findings=tuple(findings))


def _summarise_links(trace: Trace, messages: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each pair of ranks that sent messages (a row each), in `LINK_COLUMNS`."""
    host = trace.workers.select("rank", "host")
    return (
        messages.group_by(_ENDS)
        .agg(
            pl.col("bytes").sum(),
            messages=pl.len(),
            message_ns=pl.col("link_ns").median(),
            bandwidth=(pl.col("bytes") / pl.col("link_ns").clip(lower_bound=1)).median(),
        )
        .join(host.rename({"host": "sender_host"}), left_on="sender", right_on="rank")
        .join(host.rename({"host": "receiver_host"}), left_on="receiver", right_on="rank")
        .sort("bandwidth", *_ENDS)
        .select(pl.col(name).cast(kind) for name, kind in LINK_COLUMNS.items())
    )


def _sort_by_loss(links: list[_SlowLink]) -> list[_SlowLink]:
    return sorted(links, key=lambda link: -float(link.lost_ns.sum()))


def _group_by_rank(links: list[_SlowLink]) -> list[list[_SlowLink]]:
    """Put links together that share a rank, directly or through others: they are slow for one reason."""
    groups: list[list[_SlowLink]] = []
    for link in _sort_by_loss(links):
        touching_groups = [
            group
            for group in groups
            if any({*link.sender_and_receiver} & {*member.sender_and_receiver} for member in group)
        ]
        groups = [group for group in groups if group not in touching_groups]
        groups.append([*(member for group in touching_groups for member in group), link])
    return groups


def _report_links(
    facts: Facts, calls: pl.DataFrame, messages: pl.DataFrame, group: list[_SlowLink]
) -> Finding:
    """Report slow links of one reason; `calls` has a row a collective, `messages` one a message."""
    group = _sort_by_loss(group)
    main_link, run_ns = group[0], job_ns(facts.trace)
    sender, receiver = main_link.sender_and_receiver
    steps = int(main_link.step_numbers[0]), int(main_link.step_numbers[-1])
    in_steps = messages.filter(pl.col("step").is_between(*steps))
    on_link = pl.col("sender").eq(sender) & pl.col("receiver").eq(receiver)
    message_ns, usual_ns = (_find_median_ns(in_steps.filter(rows)) for rows in (on_link, ~on_link))
    has_hops = bool(in_steps.filter(on_link)["hop"].any())  # messages that are part of a collective
    price = _price_links(facts, calls, group, is_of_collectives=has_hops)
    shared_ranks = set.intersection(*({*link.sender_and_receiver} for link in group))
    ranks = sorted(shared_ranks) if len(group) > 1 and shared_ranks else [sender, receiver]
    host_of = dict(facts.trace.workers.select("rank", "host").iter_rows())
    slowdown = float(np.median(main_link.time_ratios))
    return Finding.of(
        "slow_link",
        {
            "who": _name_links(messages, group, ranks),
            "steps": fmt.steps(*steps),
            "message": fmt.duration(message_ns),
            "ratio": f"{slowdown:.1f}",
        },
        ranks=tuple(ranks),
        hosts=tuple(dict.fromkeys(str(host_of[rank]) for rank in ranks)),
        phase="reduction",
        pattern=main_link.pattern,
        steps=steps,
        slowdown=slowdown,
        saving=float(price.saved_ns_by_step.sum()) / run_ns,
        interval=price.measure_interval(run_ns),
        confidence=1 - main_link.p_value,
        fix=price.fix,
        evidence={
            "sender": sender,
            "receiver": receiver,
            "message_ns": message_ns,
            "usual_message_ns": usual_ns,
            "slow_links": [list(link.sender_and_receiver) for link in group],
            "p_value": main_link.p_value,
        },
    )


def _price_links(
    facts: Facts, calls: pl.DataFrame, group: list[_SlowLink], *, is_of_collectives: bool
) -> TransferPrice:
    """Price that messages of slow links take no longer than others.

    If those are hops of collectives (`is_of_collectives`), all `calls`, one per row, get shorter by what
    the first link of the group loses.
    """
    main_link = group[0]
    collectives_ns = transfers.measure_wire_ns(calls, main_link.step_numbers)  # [step]
    if is_of_collectives and collectives_ns.any():
        time_ratio = _measure_ratio_of_collectives(main_link, collectives_ns)
        communicators = calls["communicator"].cast(pl.String).unique()
        fix = TransferFix(
            main_link.step_numbers, ratios_by_carrier=dict.fromkeys(communicators, time_ratio)
        )
        return price_faster_calls(facts.replay, fix, collectives_ns * (1 - time_ratio))
    steps = np.unique(np.concatenate([link.step_numbers for link in group]))
    time_ratios: dict[Carrier, Floats] = {}
    lost_ns = np.zeros(len(steps))
    for link in group:
        rows = np.searchsorted(steps, link.step_numbers)
        lost_ns[rows] += link.lost_ns
        time_ratio = time_ratios[link.sender_and_receiver] = np.ones(len(steps))
        time_ratio[rows] = 1 / np.maximum(link.time_ratios, 1)
    return price_faster_calls(
        facts.replay, TransferFix(step_numbers=steps, ratios_by_carrier=time_ratios), lost_ns
    )


def _measure_ratio_of_collectives(link: _SlowLink, collectives_ns: Floats) -> Floats:
    """Return collectives' time without a slow link, as a ratio of their time, [step].

    Where its messages make up the collectives' transfer, that is divided by the link's ratio; else the
    link's loss is subtracted.
    """
    link_ns = link.lost_ns * link.time_ratios / np.maximum(link.time_ratios - 1, ROUNDING_OF_RATIO)
    remaining_ratio = 1 / np.maximum(link.time_ratios, 1)
    collectives_ns = np.maximum(collectives_ns, 1)
    if np.median(link_ns / collectives_ns) < MIN_SHARE_OF_COLLECTIVES_ON_LINK:
        remaining_ratio = np.maximum(remaining_ratio, 1 - link.lost_ns / collectives_ns)
    return remaining_ratio


def _find_median_ns(messages: pl.DataFrame) -> float:
    median_ns = messages["link_ns"].median()
    return median_ns if isinstance(median_ns, float) else 0.0


def _name_links(messages: pl.DataFrame, group: list[_SlowLink], ranks: list[int]) -> str:
    """Name slow links as a subject, by ranks in common; `messages` has a row each, of all links."""
    if len(group) == 1:
        sender, receiver = group[0].sender_and_receiver
        return f"The link from rank {sender} to rank {receiver} is"
    if len(ranks) == 1:
        messages_of_rank = messages.filter(pl.any_horizontal(pl.col(_ENDS) == ranks[0]))
        count = "All" if len(group) == messages_of_rank.n_unique(_ENDS) else len(group)
        return f"{count} links of rank {ranks[0]} are"
    return f"{len(group)} links around ranks {ranks[0]} and {ranks[-1]} are"


def _find_slow_links(facts: Facts, messages: pl.DataFrame) -> list[_SlowLink]:
    """Search all links for slow ones; those inside of a host are not slow if one of their ranks is.

    `messages` has one row per message. A link is a pair of sender and receiver.
    """
    trace = facts.trace
    step_ns = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    if messages.is_empty() or not isinstance(step_ns, float):
        return []
    hosts = trace.workers.select("rank", "host")
    with_hosts = messages.join(hosts, left_on="sender", right_on="rank").join(
        hosts, left_on="receiver", right_on="rank", suffix="_of_receiver"
    )
    is_between_hosts = pl.col("host").ne_missing(pl.col("host_of_receiver"))
    parts = [with_hosts.filter(flags) for flags in (is_between_hosts, ~is_between_hosts)]
    link_times = [_LinkTimes.from_messages(alike) for alike in parts if not alike.is_empty()]
    links = [
        link
        for times in link_times
        for link in _search_alike_links(times, step_ns, trace.uncertainty_ns)
    ]
    host_of = dict(hosts.iter_rows())
    between_hosts = [
        link for link in links if len({host_of[rank] for rank in link.sender_and_receiver}) == 2
    ]
    if len(between_hosts) == len(links) or is_machine_busy(facts.core_wait_share or 0.0):
        return between_hosts
    return [
        link
        for link in links
        if link in between_hosts
        or not any(
            _may_be_slow(rank, link, link_times, facts.phases) for rank in link.sender_and_receiver
        )
    ]


def _search_alike_links(times: _LinkTimes, step_ns: float, uncertainty_ns: int) -> list[_SlowLink]:
    """Search links that are alike: each of them, and groups that are a large share of all.

    A usual step takes `step_ns`; the clocks of two hosts may differ by `uncertainty_ns`.
    """
    steps, link_count = times.time_ratios.shape
    if steps < MIN_STEPS_TO_JUDGE_LINKS + WARM_UP or link_count < 2:
        return []
    windows = [
        _scan_group(times, group, step_ns) for group in _find_groups(times.senders_and_receivers)
    ]
    if link_count > 2:
        windows += _scan_links(times, step_ns)
    p_values = np.array([window.p_value for window in windows])
    is_significant = window_scan.find_discoveries(p_values, MAX_ERROR_RATE_OF_LINKS)
    slow_links: dict[tuple[int, int], _SlowLink] = {}
    for row in np.flatnonzero(is_significant).tolist():
        window = windows[row]
        columns = (
            np.flatnonzero(window.is_in_group).tolist()
            if window.mean_delay >= MIN_DELAY_OF_LINK
            else []
        )
        links = [_follow_link(times, window, column, step_ns, uncertainty_ns) for column in columns]
        known_links = [link for link in links if link is not None]
        for link in known_links if len(known_links) == len(links) else ():
            slow_links.setdefault(link.sender_and_receiver, link)
    return list(slow_links.values())


@dataclass(frozen=True, eq=False)
class _Window:
    """The first and last row (step) in which a group of links, [link], is delayed most.

    `mean_delay` is by how much beyond the others, as a share of a step; `p_value` the probability of
    chance.
    """

    is_in_group: Flags
    first_row: int
    last_row: int
    mean_delay: float
    p_value: float

    @classmethod
    def from_scan(cls, is_in_group: Flags, scan: Scan, *, column: int) -> _Window:
        """Return the window that a scan, which leaves out the warm-up, found for one of its columns."""
        first_row, last_row = (
            int(rows[column]) + WARM_UP for rows in (scan.first_rows, scan.last_rows)
        )
        mean_delay, p_value = float(scan.residuals[column]), float(scan.p_values[column])
        return cls(is_in_group, first_row, last_row, mean_delay, p_value)


def _find_groups(links: list[tuple[int, int]]) -> list[Flags]:
    """Return groups of links, each as flags, [link], that the median link may be one of.

    They are all links of a rank, or of a pair of ranks; a link is its sender and its receiver.
    """
    ends = np.array(links)
    groups = {(ends == rank).any(axis=1).tobytes() for rank in np.unique(ends)}
    groups |= {np.isin(ends, pair).all(axis=1).tobytes() for pair in ends}
    if len(links) == 2:
        groups |= {np.array([is_first, not is_first]).tobytes() for is_first in (True, False)}
    group_flags = (np.frombuffer(group, np.bool_) for group in sorted(groups))
    min_count = MIN_SHARE_OF_LINKS_IN_GROUP * len(links)
    return [flags for flags in group_flags if min_count < flags.sum() < len(links)]


def _scan_group(times: _LinkTimes, is_in_group: Flags, step_ns: float) -> _Window:
    """Compare the mean link of a group, [link], with the links that are not in it."""
    delays = _to_shares_of_step(times.measure_delays_ns(~is_in_group)[WARM_UP:], step_ns)
    mean_delay, other_delays = delays[:, is_in_group].mean(axis=1), delays[:, ~is_in_group]
    if other_delays.shape[1] == 1:
        return _Window.from_scan(is_in_group, window_scan.scan_pair(mean_delay), column=1)
    scan = window_scan.scan_ranks(np.column_stack([mean_delay, other_delays]))
    return _Window.from_scan(is_in_group, scan, column=0)


def _scan_links(times: _LinkTimes, step_ns: float) -> list[_Window]:
    """Compare each link with all."""
    count = len(times.senders_and_receivers)
    delays_ns = times.measure_delays_ns(np.ones(count, np.bool_))
    scan = window_scan.scan_ranks(_to_shares_of_step(delays_ns[WARM_UP:], step_ns))
    return [_Window.from_scan(np.arange(count) == link, scan, column=link) for link in range(count)]


def _to_shares_of_step(delays_ns: Floats, step_ns: float) -> Floats:
    """Return delays as shares of a step, cut so that messages of several steps do not hide others."""
    return np.minimum(delays_ns / max(step_ns, 1.0), MAX_DELAY_SCANNED)


def _may_be_slow(rank: int, link: _SlowLink, link_times: list[_LinkTimes], phases: Phases) -> bool:
    """Return True if a rank of a link computes longer, or has no other link that could show it."""
    links_of_rank = [
        ends for times in link_times for ends in times.senders_and_receivers if rank in ends
    ]
    if links_of_rank == [link.sender_and_receiver]:
        return True
    compute_ns = phases.sum_ns_by_window(*USEFUL_KINDS)  # a number for each step of a rank
    is_of_rank = phases.pieces.step_windows["rank"].to_numpy() == rank
    is_in_steps = phases.window_has_time & np.isin(
        phases.step_numbers[phases.step_index_of_window], link.step_numbers
    )
    own_ns, others_ns = compute_ns[is_in_steps & is_of_rank], compute_ns[is_in_steps & ~is_of_rank]
    min_ratio = 1 + MIN_MORE_COMPUTE_IF_RANK_SLOW
    return bool(len(own_ns) and np.median(own_ns) > min_ratio * np.median(others_ns))


@dataclass(frozen=True, eq=False)
class _LinkTimes:
    """Links that are alike, each given by sender and receiver, and their messages, [step, link].

    `time_ratios` are how many times as long as usual they take; usual ones of the same sizes take
    `expected_ns`. Where too little `is_known` of a link, both are those of about the nearest step.
    """

    step_numbers: Ints
    senders_and_receivers: list[tuple[int, int]]
    message_counts: Floats
    is_known: Flags
    expected_ns: Floats
    time_ratios: Floats

    @classmethod
    def from_messages(cls, messages: pl.DataFrame) -> _LinkTimes:
        """Sum up the time of messages, a row each, and what they usually take, by step and link."""
        sums = (
            _add_usual_time(messages)
            .group_by("step", *_ENDS)
            .agg(pl.col("link_ns", "usual_ns").sum(), messages=pl.len())
        )
        steps = sums["step"].unique().sort()
        links = sums.select(_ENDS).unique().sort(_ENDS)
        all_cells = steps.to_frame().join(links, how="cross")  # a row per step and link
        sums = all_cells.join(sums, on=all_cells.columns, how="left", maintain_order="left")
        cells = sums.select(pl.col("link_ns", "usual_ns", "messages").fill_null(0).cast(pl.Float64))
        matrices = cells.to_numpy().T.reshape(3, len(steps), links.height)
        spent_ns, expected_ns, counts = matrices  # [step, link]
        min_count = MIN_SHARE_OF_MESSAGES_TO_JUDGE_STEP * np.median(counts, axis=1, keepdims=True)
        is_known = (expected_ns > 0) & (counts >= min_count)
        ratio = np.where(is_known, spent_ns / np.where(is_known, expected_ns, 1), np.nan)
        expected_ns, ratio = (_fill_unknown(values, is_known) for values in (expected_ns, ratio))
        numbers = steps.to_numpy().astype(np.int64)
        return cls(
            step_numbers=numbers,
            senders_and_receivers=list(links.iter_rows()),
            message_counts=counts,
            is_known=is_known,
            expected_ns=expected_ns,
            time_ratios=ratio,
        )

    def measure_delays_ns(self, is_usual: Flags) -> Floats:
        """Return by how much each link takes longer than the median of usual links, [step, link]."""
        usual = np.nan_to_num(medians(self.time_ratios[:, is_usual], axis=1)[:, None], nan=1.0)
        return np.nan_to_num((self.time_ratios - usual) * self.expected_ns, nan=0.0)


def _add_usual_time(messages: pl.DataFrame) -> pl.DataFrame:
    """Add the usual time of messages of about that size, `usual_ns`; `messages` has a row each.

    A message takes no longer than a larger one, and in proportion no longer than a smaller one: so sizes
    that a slow link alone carries are compared, too.
    """
    message_bytes = pl.col("bytes").fill_null(0) + 1
    with_size = messages.with_columns(size=message_bytes.log(2).mul(2).round())  # half powers of 2
    medians_ns_and_bytes = pl.col("link_ns").median(), message_bytes.median().alias("nbytes")
    by_size = with_size.group_by("size").agg(medians_ns_and_bytes).sort("size")
    size_bytes = by_size["nbytes"].to_numpy()
    scaled_ns = by_size["link_ns"].to_numpy() * np.maximum(size_bytes[:, None] / size_bytes, 1.0)
    return with_size.join(
        by_size.select("size", usual_ns=pl.Series(scaled_ns.min(axis=1))), on="size"
    )


def _fill_unknown(values: Floats, is_known: Flags) -> Floats:
    """Return values, [step, link], with unknown ones as the median of three known around the nearest."""
    filled = values.copy()
    for link in np.flatnonzero(~is_known.all(axis=0)):
        known_rows = np.flatnonzero(is_known[:, link])
        if len(known_rows):
            padded_values = np.pad(values[known_rows, link], 1, mode="edge")
            medians_of_three = np.median(
                [padded_values[:-2], padded_values[1:-1], padded_values[2:]], axis=0
            )
            middles = (known_rows[1:] + known_rows[:-1]) / 2
            unknown_rows = np.flatnonzero(~is_known[:, link])
            filled[unknown_rows, link] = medians_of_three[np.searchsorted(middles, unknown_rows)]
    return filled


def _follow_link(
    times: _LinkTimes, window: _Window, link: int, step_ns: float, uncertainty_ns: int
) -> _SlowLink | None:
    """Return the steps in which a link (column) is slow, from a window in which its group is.

    None if messages lose too little, or less than clocks, by `uncertainty_ns`, may err. `step_ns` is the
    length of a usual step.
    """
    delays_ns = times.measure_delays_ns(~window.is_in_group)[:, link]
    delays = _to_shares_of_step(delays_ns, step_ns)
    course = fit_course(
        delays[WARM_UP:],
        window.first_row - WARM_UP,
        window.last_row - WARM_UP,
        max_ratio=MAX_DEVIATION_RATIO_IF_LINK_DRIFTS,
    )
    first_row, last_row = course.first_row + WARM_UP, course.last_row + WARM_UP
    if course.first_row == 0 and np.median(delays[:WARM_UP]) > course.mean_delay / 2:
        first_row = 0
    rows = slice(first_row, last_row + 1)
    is_known = times.is_known[rows, link]
    time_ratio = times.time_ratios[rows]  # [step, link]
    slow_ratio = time_ratio[:, link] / medians(time_ratio[:, ~window.is_in_group], axis=1)
    is_slow = medians(slow_ratio[is_known], axis=0) >= MIN_RATIO_OF_SLOW_LINK
    lost_ns = np.where(is_known, np.maximum(delays_ns[rows], 0), 0.0)
    loss_of_message_ns = lost_ns.sum() / max(times.message_counts[rows, link].sum(), 1)
    exceeds_clocks = loss_of_message_ns > CLOCK_UNCERTAINTIES_OF_LOSS * uncertainty_ns
    if is_known.sum() < MIN_STEPS_OF_SLOW_LINK or not is_slow or not exceeds_clocks:
        return None
    return _SlowLink(
        sender_and_receiver=times.senders_and_receivers[link],
        step_numbers=times.step_numbers[rows],
        time_ratios=slow_ratio,
        lost_ns=lost_ns,
        pattern=course.pattern,
        p_value=window.p_value,
    )
