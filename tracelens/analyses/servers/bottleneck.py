"""What binds parameter servers: processors, links, or links that collapse when many push together.

A shard that takes longer per byte than the others is a fault, as is incast; servers that are all alike
are an opportunity, priced as if each had twice the processor, or bandwidth. The matching edit of the
replay says what that saves, or why it is not known (docs/analyses/parameter-servers.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.analyses.servers.small_messages import find_small_messages
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.pricing import EditPrice, price_edits
from tracelens.stats.robust import join_intervals

if TYPE_CHECKING:
    from tracelens.analyses.servers.small_messages import Messages
    from tracelens.analyses.servers.utilisation import Exchange
    from tracelens.arrays import Floats
    from tracelens.model.findings import Pattern

# share of the window: a processor, or a link, that is at work as long binds its shard [calibrate;
# one decision in classify_shards, _choose_case]
MIN_BUSY_SHARE_IF_BOUND: Final = 0.8
# share of the push window: the link binds only if the processor is at work for less [calibrate]
MAX_BUSY_SHARE_OF_CPU_IF_NETWORK_BOUND: Final = 0.25
# times: the link's best goodput over its usual one if pushes collide [calibrate]
MIN_COLLAPSE_IF_INCAST: Final = 1.5
# share of the push window: a link that receives for less does not bind [calibrate]
MIN_RECEIVING_SHARE_IF_INCAST: Final = 0.5
MIN_STEPS_TO_JUDGE_SERVERS: Final = 20  # steps: servers are not judged by fewer [calibrate]
# share of the window: what is at work for less is not said to bind at times [chosen]
MIN_BUSY_SHARE_IF_BOUND_AT_TIMES: Final = 0.25
# of the job: where nothing binds, what would save less is not reported [policy]
MIN_SAVING_IF_NOTHING_BINDS: Final = 0.05
# times: a slow shard takes as many times as long per byte as the others [calibrate]
MIN_RATIO_OF_TIME_PER_BYTE: Final = 1.5
# share: a shard is slow for the whole run if as many steps show it, half as clearly [calibrate]
MIN_SHARE_OF_STEPS_IF_SHARD_ALWAYS_SLOW: Final = 0.75
MIN_SLOW_STEPS_OF_SHARD: Final = 3  # steps: fewer slow ones say nothing of a shard [calibrate]
# share of the steps from the first to the last slow one: fewer slow ones are sparse [chosen]
MIN_SHARE_OF_STEPS_IF_TRANSIENT: Final = 0.75
# of the job: faster servers that save less are not reported [policy]
MIN_SAVING_TO_REPORT_UPGRADE: Final = 0.03
# of the job: a fault of servers that costs less is not reported [policy]
MIN_SAVING_TO_REPORT_SERVER_FAULT: Final = 0.03

Bound = Literal["cpu", "network", "incast"]
_KINDS: Final[dict[Bound, str]] = {
    "incast": "ps_incast",
    "cpu": "ps_cpu_bound",
    "network": "ps_network_bound",
}
_DEVICES: Final[dict[Bound, str]] = {"cpu": "processor", "network": "link"}
_FIELDS: Final[dict[Bound, dict[str, str]]] = {
    "cpu": {"bound": "CPU", "window": "push"},
    "network": {"bound": "network", "window": "push/pull"},
}


def classify_shards(exchange: Exchange, message_share: float) -> dict[int, Bound]:
    """Return the bound of each shard, by its column, where it is clear.

    `message_share` is the links' work for messages however few their bytes, as a share of all.
    """
    bounds: dict[int, Bound] = {}
    cpu_share, link_share = exchange.measure_busy_shares()  # of their windows, [shard]
    push_window_ns = exchange.push_window_ns.sum(axis=0)
    receiving_share = exchange.receiving_ns.sum(axis=0) / np.maximum(push_window_ns, 1)
    for column, goodput in enumerate(exchange.goodput_of_shard):
        # What messages cost by themselves is lost however few share the link.
        slowdown = goodput.collapse_ratio * (1 - message_share) if goodput else 1.0
        is_crowd_slower = goodput is not None and goodput.is_crowd_slower
        collapses = is_crowd_slower and slowdown >= MIN_COLLAPSE_IF_INCAST
        is_cpu_idle = cpu_share[column] < MAX_BUSY_SHARE_OF_CPU_IF_NETWORK_BOUND
        if collapses and receiving_share[column] >= MIN_RECEIVING_SHARE_IF_INCAST:
            bounds[column] = "incast"
        elif cpu_share[column] >= MIN_BUSY_SHARE_IF_BOUND:
            bounds[column] = "cpu"
        elif link_share[column] >= MIN_BUSY_SHARE_IF_BOUND and is_cpu_idle:
            bounds[column] = "network"
    return bounds


def find_bottlenecks(
    exchange: Exchange, bounds: dict[int, Bound], messages: Messages, explained: frozenset[int]
) -> list[Finding]:
    """Report what limits the exchange of weights, each kind once; shards slower than others first.

    Fewer messages are advised instead of bandwidth where they save more.

    Args:
        exchange: What workers and servers exchanged.
        bounds: What limits each shard (its link, processor, or incast), by its column in `exchange`.
        messages: The messages between workers and servers.
        explained: Numbers of shards that another finding reports as holding most bytes: these are left
            out here, and no fewer messages are advised then.
    """
    if len(exchange.exposed_wait_ns) < MIN_STEPS_TO_JUDGE_SERVERS:
        findings: list[Finding] = []
    else:
        findings = _report_bounds(exchange, bounds, explained) or _report_gains(exchange, explained)
    # Without advice to buy a faster network.
    without_upgrades = [f for f in findings if f.kind != _KINDS["network"] or f.category == "fault"]
    if explained or (findings and len(without_upgrades) == len(findings)):
        return findings
    message_findings = find_small_messages(exchange, messages)
    best_saving = max((finding.saving or 0.0 for finding in findings), default=0.0)
    if message_findings and (message_findings[0].saving or 0.0) > best_saving:
        return [*without_upgrades, *message_findings]
    return findings


def _report_bounds(
    exchange: Exchange, bounds: dict[int, Bound], explained: frozenset[int]
) -> list[Finding]:
    """Report what clearly binds shards: `bounds`, by column; not shards (numbers) that are explained."""
    findings = []
    for kind in _KINDS:
        columns = [column for column, bound in bounds.items() if bound == kind]
        unexplained_columns = [
            column for column in columns if exchange.shard_ranks[column] not in explained
        ]
        slow_findings = (
            [] if kind == "incast" else _report_slower(exchange, unexplained_columns, kind)
        )
        findings += slow_findings
        if slow_findings or not columns or unexplained_columns != columns:
            continue
        if kind == "incast":
            incast_findings = _report_incast(exchange, columns)
            # Where the replay finds none, a link that is slow at times may look like it.
            is_priced = any(finding.saving is not None for finding in incast_findings)
            slow_findings = [] if is_priced else _report_slower(exchange, columns, "network")
            findings += slow_findings or incast_findings
        else:
            price = _price_faster(exchange, columns, kind)  # what faster ones would save
            findings += _report_alike(exchange, columns, kind, price)
    return findings


def _report_gains(exchange: Exchange, explained: frozenset[int]) -> list[Finding]:
    """Report slow shards, or what would help most, where pushes are too far apart to fill a window."""
    all_columns = list(range(len(exchange.shard_ranks)))
    unexplained_columns = [
        column for column in all_columns if exchange.shard_ranks[column] not in explained
    ]
    slow_findings = [
        finding
        for kind in _DEVICES
        for finding in _report_slower(exchange, unexplained_columns, kind)
    ]
    if slow_findings or explained:
        return slow_findings
    prices = {
        kind: _price_faster(exchange, all_columns, kind)
        for kind in _DEVICES
        if _measure_busy_share(exchange, all_columns, kind) >= MIN_BUSY_SHARE_IF_BOUND_AT_TIMES
    }
    savings = {
        kind: price.saving_share for kind, price in prices.items() if price.saving_share is not None
    }
    best_saving = max(savings.values(), default=0.0)
    if best_saving < MIN_SAVING_IF_NOTHING_BINDS:
        return []
    return [
        finding
        for kind, price in prices.items()
        if savings.get(kind, 0.0) > best_saving / 2
        for finding in _report_alike(exchange, all_columns, kind, price)
    ]


def _price_faster(exchange: Exchange, shard_columns: list[int], kind: Bound) -> EditPrice:
    """Price processors, or links, of some shards (columns) that are twice as fast.

    Where all messages have about one size, all that links take counts as for bytes.
    """
    device, replay = _DEVICES[kind], exchange.replay
    if len(shard_columns) < len(exchange.shard_ranks):
        edits = (f"shard:{exchange.shard_ranks[column]},{device}*2" for column in shard_columns)
        return price_edits(replay, *edits)
    if kind == "network":
        price = price_edits(replay, "bandwidth*2")
        if price.saving_share is not None:
            return price
    return price_edits(replay, f"{device}*2")


def _report_incast(exchange: Exchange, columns: list[int]) -> list[Finding]:
    """Report that links of shards (columns) collapse when many workers push at the same time."""
    goodputs = {column: link for column in columns if (link := exchange.goodput_of_shard[column])}
    worst_goodput = max(goodputs.values(), key=lambda goodput: goodput.collapse_ratio)
    price = price_edits(exchange.replay, "incast=off")
    lost_ns = sum(
        exchange.receiving_ns[:, column].sum()
        * (1 - goodput.mean_bytes_per_ns / goodput.best_bytes_per_ns)
        for column, goodput in goodputs.items()
    )
    receive = "receives" if len(columns) == 1 else "receive"
    condition = "in replies" if worst_goodput.reply_bytes_per_ns else "when fewer do"
    findings = _report(
        exchange,
        columns,
        "incast",
        price,
        at_most=lost_ns / exchange.job_ns,
        fields={
            "who": f"{_name_shards(exchange, columns)} {receive}",
            "usual": fmt.bandwidth(worst_goodput.mean_bytes_per_ns),
            "pushes": f"{worst_goodput.mean_message_count:.0f}",
            "best": f"{fmt.bandwidth(worst_goodput.best_bytes_per_ns)} {condition}",
        },
        evidence={
            "goodput": worst_goodput.mean_bytes_per_ns,
            "best_goodput": worst_goodput.best_bytes_per_ns,
            "pushes_at_once": worst_goodput.mean_message_count,
            "sent_goodput": worst_goodput.reply_bytes_per_ns,
            "goodput_by_pushes": dict(
                zip(
                    map(str, worst_goodput.message_counts),
                    worst_goodput.bytes_per_ns_by_class,
                    strict=True,
                )
            ),
        },
        slowdown=worst_goodput.collapse_ratio,
    )
    if not findings or price.saving_share is None:
        return findings
    # The best goodput is in doubt, too: links would be so much slower, or faster.
    margin = TWO_SIDED * max(goodput.relative_error for goodput in goodputs.values())
    low_saving, high_saving = (
        price_edits(
            exchange.replay, "incast=off", f"link*{speed:.6f}", saving_only=True
        ).saving_share
        or 0.0
        for speed in (1 / (1 + margin), 1 + margin)
    )
    interval = join_intervals(
        price.saving_share, findings[0].interval or (0.0, 0.0), (low_saving, high_saving)
    )
    return [replace(findings[0], interval=interval)]


def _report_slower(exchange: Exchange, shard_columns: list[int], kind: Bound) -> list[Finding]:
    """Report the shards, of some (columns), whose device takes longer per byte than the others'."""
    if len(exchange.shard_ranks) < 2 or exchange.moved_bytes is None or not shard_columns:
        return []
    if np.isnan(_measure_busy_share(exchange, shard_columns, kind)):
        return []
    # In ns per byte, [step, shard].
    paces = _get_work_ns(exchange, kind) / np.maximum(exchange.moved_bytes, 1)
    slowdowns: dict[int, float] = {}  # by column, as the patterns
    patterns: dict[int, Pattern] = {}
    lost_ns = np.zeros(len(paces))  # of the worst shard, [step]
    for column in shard_columns:
        own_pace, other_paces = paces[:, column], np.delete(paces, column, axis=1)
        usual_pace = np.median(other_paces, axis=1)
        pattern = _find_pattern(own_pace, usual_pace)
        if pattern is not None:
            patterns[column] = pattern
            slowdowns[column] = float(own_pace.sum() / max(float(usual_pace.sum()), 1e-12))
            extra_ns = np.maximum(own_pace - usual_pace, 0.0) * exchange.moved_bytes[column]
            lost_ns = np.maximum(lost_ns, extra_ns)
    if not patterns:
        return []
    slow_columns = [*patterns]
    slowest = max(sorted(slowdowns), key=slowdowns.__getitem__)
    slowdown, pattern = slowdowns[slowest], patterns[slowest]
    busy_share = _measure_busy_share(exchange, slow_columns, kind)
    edits = [
        f"shard:{exchange.shard_ranks[column]},{_DEVICES[kind]}=median" for column in slow_columns
    ]
    lost = None if pattern == "persistent" else (exchange.step_numbers, lost_ns)
    fields = _describe_busy(exchange, slow_columns, kind, busy_share)
    return _report(
        exchange,
        slow_columns,
        kind,
        price_edits(exchange.replay, *edits, lost=lost),
        at_most=float(lost_ns.sum()) / exchange.job_ns,
        fields=fields | {"ratio": f"{slowdown:.1f}"},
        evidence={"share_of_window": busy_share, "times_per_byte": slowdown},
        case=f"slower {_choose_case(busy_share if pattern == 'persistent' else 0.0)}".rstrip(),
        slowdown=slowdown,
        pattern=pattern,
    )


def _find_pattern(own_pace: Floats, usual_pace: Floats) -> Pattern | None:
    """Return when a shard is slower than usual, both ns per byte, [step]; None if not, or by chance."""
    ratio = MIN_RATIO_OF_TIME_PER_BYTE
    if own_pace.sum() < ratio * usual_pace.sum() or not own_pace.any():
        return None
    is_slow_by_half = own_pace > (1 + ratio) / 2 * usual_pace
    if np.mean(is_slow_by_half) >= MIN_SHARE_OF_STEPS_IF_SHARD_ALWAYS_SLOW:
        return "persistent"
    slow_rows = np.flatnonzero(own_pace > ratio * usual_pace)
    slowest_row = int(np.argmax(own_pace - usual_pace))
    own_elsewhere, usual_elsewhere = (
        np.delete(pace, slowest_row) for pace in (own_pace, usual_pace)
    )
    is_slow_elsewhere = own_elsewhere.sum() >= ratio * usual_elsewhere.sum()
    if len(slow_rows) < MIN_SLOW_STEPS_OF_SHARD or not is_slow_elsewhere:
        return None
    row_count = slow_rows[-1] - slow_rows[0] + 1
    is_dense = len(slow_rows) >= MIN_SHARE_OF_STEPS_IF_TRANSIENT * row_count
    return "transient" if is_dense else "sparse"


def _report_alike(
    exchange: Exchange, shard_columns: list[int], kind: Bound, price: EditPrice
) -> list[Finding]:
    """Report what twice the processors, or the bandwidth, of some shards (columns) would save."""
    busy_share = _measure_busy_share(exchange, shard_columns, kind)
    fields = _describe_busy(exchange, shard_columns, kind, busy_share)
    if price.saving_share is not None:
        fields["more"] = f"twice the {'processors' if kind == 'cpu' else 'bandwidth'}"
    busiest_ns = _get_work_ns(exchange, kind)[:, shard_columns].max(
        axis=1
    )  # of these shards, [step]
    return _report(
        exchange,
        shard_columns,
        kind,
        price,
        at_most=float(busiest_ns.sum()) / 2 / exchange.job_ns,
        fields=fields,
        evidence={"share_of_window": busy_share},
        case=_choose_case(busy_share),
    )


def _choose_case(busy_share: float) -> str:
    """Return the case of the sentence for a share of the window: what idles does not bind."""
    return "" if busy_share >= MIN_BUSY_SHARE_IF_BOUND else "at times"


def _get_work_ns(exchange: Exchange, kind: Bound) -> Floats:
    """Return for how long processors, or links, are at work, ns, [step, shard]."""
    return exchange.cpu_ns if kind == "cpu" else exchange.link_ns


def _measure_busy_share(exchange: Exchange, columns: list[int], kind: Bound) -> float:
    """Return for what share of their windows devices of shards (columns) work; nan if not recorded."""
    window_ns = exchange.push_window_ns + (exchange.pull_window_ns if kind == "network" else 0)
    if np.isnan(exchange.measure_busy_shares()[kind == "network"][columns]).any():
        return float("nan")
    work_ns = _get_work_ns(exchange, kind)[:, columns].sum()
    return float(work_ns / max(window_ns[:, columns].sum(), 1))


def _describe_busy(
    exchange: Exchange, columns: list[int], kind: Bound, busy_share: float
) -> dict[str, str]:
    """Return the fields that say which shards are bound by what, and how busy that is."""
    subject = f"{_name_shards(exchange, columns)} {'is' if len(columns) == 1 else 'are'}"
    return {"who": subject, "busy": fmt.percent(busy_share), "part": _DEVICES[kind]} | _FIELDS[kind]


def _report(
    exchange: Exchange,
    shard_columns: list[int],
    kind: Bound,
    price: EditPrice,
    *,
    at_most: float,
    fields: dict[str, str],
    evidence: dict[str, Any],
    case: str = "",
    slowdown: float | None = None,
    pattern: Pattern = "persistent",
) -> list[Finding]:
    """Report some shards (columns), if fixing them saves enough; with a slowdown that is a fault.

    Without a price they are judged by `at_most`, a share of the job that no saving exceeds. `fields` are
    the words of the sentence, `case` says which of its forms it has.
    """
    is_fault, is_priced = slowdown is not None, price.saving_share is not None
    min_saving = MIN_SAVING_TO_REPORT_SERVER_FAULT if is_fault else MIN_SAVING_TO_REPORT_UPGRADE
    if (at_most if price.saving_share is None else price.saving_share) < min_saving:
        return []
    finding = Finding.of(
        _KINDS[kind],
        fields if is_priced else {**fields, "refusal": price.refusal},
        case=case if is_priced else f"{case} not priced".lstrip(),
        category="fault" if is_fault else "opportunity",
        shards=tuple(exchange.shard_ranks[column] for column in shard_columns),
        hosts=exchange.list_hosts(shard_columns),
        phase="ps",
        pattern=pattern,
        saving=price.saving_share,
        interval=price.saving_interval,
        fix=price.fix,
        slowdown=slowdown,
        evidence={**evidence, "edits": price.edits},
    )
    return [finding]


def _name_shards(exchange: Exchange, columns: list[int]) -> str:
    if len(columns) == len(exchange.shard_ranks) > 1:
        return "Both PS shards" if len(columns) == 2 else f"All {len(columns)} PS shards"
    return fmt.listing("PS shard", [exchange.shard_ranks[column] for column in columns])
