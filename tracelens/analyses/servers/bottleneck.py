"""What binds parameter servers: processors, links, or links that collapse when many push at once.

Where workers are queued or transfer for a tenth of their time, each shard's windows are looked at
(`utilisation.py`). It is bound by its **processor** if that is at work for 80 % of the push window, by
the **network** if its link is for 80 % of both windows and the processor for less than a quarter, by
**incast** if a third of the goodput that its link reaches with fewer messages is lost with many. A part
that is at work for less than a quarter is never named as what binds servers that are all alike, whatever
a faster one would save, and neither link nor incast where receiving was not recorded. A
shard that takes 1.5 times as long per byte as the others is a fault, as is incast; servers that are all
alike are an opportunity, priced as if each had twice the processor, or bandwidth. What fixing it saves
is what the matching edit of the replay saves; where that has no answer, it is null, and says why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.analyses.servers import small_messages
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.replay.pricing import EditPrice, price_edits
from tracelens.stats.robust import join_intervals

if TYPE_CHECKING:
    from tracelens.analyses.servers.exchange import Exchange
    from tracelens.analyses.servers.small_messages import Messages
    from tracelens.arrays import Floats
    from tracelens.model.findings import Pattern

__all__ = ["Bound", "classify", "findings"]
Bound = Literal["cpu", "network", "incast"]

# share of the window: a processor, or a link, that is at work as
# long binds its shard [calibrate; one decision in classify, _case]
MIN_BUSY_SHARE_IF_BOUND: Final = 0.8
# share of the push window: the link binds only if the processor is at work for less [calibrate]
MAX_BUSY_SHARE_OF_CPU_IF_NETWORK_BOUND: Final = 0.25
# times: the link's best goodput is as much better than its usual one if pushes collide [calibrate]
MIN_COLLAPSE_IF_INCAST: Final = 1.5
# share of the push window: a link that receives for less does not bind [calibrate]
MIN_RECEIVING_SHARE_IF_INCAST: Final = 0.5
MIN_STEPS_TO_JUDGE_SERVERS: Final = 20  # steps: servers are not judged by fewer [calibrate]
# share of the window: of parts that are at work for less none is said to bind at times [chosen]
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
_KINDS: Final[dict[Bound, str]] = {
    "incast": "ps_incast",
    "cpu": "ps_cpu_bound",
    "network": "ps_network_bound",
}
_PARTS: Final[dict[Bound, str]] = {"cpu": "processor", "network": "link"}
_BUSY: Final[dict[Bound, dict[str, str]]] = {
    "cpu": {"bound": "CPU", "window": "push"},
    "network": {"bound": "network", "window": "push/pull"},
}


def classify(exchange: Exchange, message_share: float) -> dict[int, Bound]:
    """Return what binds each shard (by its column), where it is clear.

    `message_share` is what messages cost links however few their bytes, as a share of the links' work.
    """
    found: dict[int, Bound] = {}
    cpu, wire = exchange.busy_shares()
    receiving = exchange.received.sum(axis=0) / np.maximum(exchange.push_window.sum(axis=0), 1)
    for column, link in enumerate(exchange.links):
        # What messages cost by themselves is lost however few share the link.
        lost = link.collapse * (1 - message_share) if link else 1.0
        collapsed = link is not None and link.falls and lost >= MIN_COLLAPSE_IF_INCAST
        if collapsed and receiving[column] >= MIN_RECEIVING_SHARE_IF_INCAST:
            found[column] = "incast"
        elif cpu[column] >= MIN_BUSY_SHARE_IF_BOUND:
            found[column] = "cpu"
        elif (
            wire[column] >= MIN_BUSY_SHARE_IF_BOUND
            and cpu[column] < MAX_BUSY_SHARE_OF_CPU_IF_NETWORK_BOUND
        ):
            found[column] = "network"
    return found


def findings(
    exchange: Exchange, bound: dict[int, Bound], messages: Messages, explained: frozenset[int]
) -> list[Finding]:
    """Report what binds, each kind once; of a kind, shards slower than others first.

    Instead of more bandwidth, fewer messages are advised where they save more. Nothing is reported of
    shards that are `explained` by what they hold.
    """
    found = _what_binds(exchange, bound, explained)
    alike = [one for one in found if one.kind != _KINDS["network"] or one.category == "fault"]
    if explained or (found and len(alike) == len(found)):
        return found
    fused = small_messages.find(exchange, messages)
    best = max((one.saving or 0.0 for one in found), default=0.0)
    return [*alike, *fused] if fused and (fused[0].saving or 0.0) > best else found


def _what_binds(
    exchange: Exchange, bound: dict[int, Bound], explained: frozenset[int]
) -> list[Finding]:
    if len(exchange.exposed) < MIN_STEPS_TO_JUDGE_SERVERS:
        return []
    found = []
    for kind in _KINDS:
        columns = [column for column, what in bound.items() if what == kind]
        others = [column for column in columns if exchange.shards[column] not in explained]
        slower = [] if kind == "incast" else _slower(exchange, others, kind)
        found += slower
        if slower or not columns or others != columns:
            continue
        if kind == "incast":
            incast = _incast(exchange, columns)
            # Where the replay sees none, a link that is slow at times may look like it.
            is_priced = any(one.saving is not None for one in incast)
            slower = [] if is_priced else _slower(exchange, columns, "network")
            found += slower or incast
        else:
            price = _price_faster(exchange, columns, kind)
            found += _all_alike(exchange, columns, kind, price)
    return found or _by_gain(exchange, explained)


def _by_gain(exchange: Exchange, explained: frozenset[int]) -> list[Finding]:
    """Report shards that are slow per byte, where pushes are too far apart to fill a window.

    If all are alike, report which of both would help more, or both if they help about as much, of those
    that are at work for long enough.
    """
    everywhere = list(range(len(exchange.shards)))
    others = [column for column in everywhere if exchange.shards[column] not in explained]
    slower = [one for kind in _PARTS for one in _slower(exchange, others, kind)]
    if slower or explained:
        return slower
    prices = {
        kind: _price_faster(exchange, everywhere, kind)
        for kind in _PARTS
        if _share(exchange, everywhere, kind) >= MIN_BUSY_SHARE_IF_BOUND_AT_TIMES
    }
    gains = {kind: price.saving for kind, price in prices.items() if price.saving is not None}
    best = max(gains.values(), default=0.0)
    if best < MIN_SAVING_IF_NOTHING_BINDS:
        return []
    helping = [kind for kind in _PARTS if gains.get(kind, 0.0) > best / 2]
    return [one for kind in helping for one in _all_alike(exchange, everywhere, kind, prices[kind])]


def _price_faster(exchange: Exchange, columns: list[int], kind: Bound) -> EditPrice:
    """Return what processors, or links, of some shards save if they are twice as fast.

    Where all messages have about one size, all that links take counts as for bytes.
    """
    part, replay = _PARTS[kind], exchange.replay
    if len(columns) < len(exchange.shards):
        return price_edits(replay, *(f"shard:{exchange.shards[one]},{part}*2" for one in columns))
    if kind == "network":
        price = price_edits(replay, "bandwidth*2")
        if price.saving is not None:
            return price
    return price_edits(replay, f"{part}*2")


def _incast(exchange: Exchange, columns: list[int]) -> list[Finding]:
    links = {column: link for column in columns if (link := exchange.links[column])}
    worst = max(links.values(), key=lambda link: link.collapse)
    price = price_edits(exchange.replay, "incast=off")
    lost_ns = sum(
        exchange.received[:, column].sum() * (1 - link.usual / link.best)
        for column, link in links.items()
    )
    found = _report(
        exchange,
        columns,
        "incast",
        price,
        at_most=lost_ns / exchange.job_ns,
        fields={
            "who": f"{_subject(exchange, columns)} {'receives' if len(columns) == 1 else 'receive'}",
            "usual": fmt.bandwidth(worst.usual),
            "pushes": f"{worst.crowd:.0f}",
            "best": f"{fmt.bandwidth(worst.best)} {'in replies' if worst.sent else 'when fewer do'}",
        },
        evidence={
            "goodput": worst.usual,
            "best_goodput": worst.best,
            "pushes_at_once": worst.crowd,
            "sent_goodput": worst.sent,
            "goodput_by_pushes": dict(zip(map(str, worst.counts), worst.rates, strict=True)),
        },
        slowdown=worst.collapse,
    )
    if not found or price.saving is None:
        return found
    # The best goodput is in doubt, too: links would be so much slower, or faster.
    doubt = TWO_SIDED * max(link.doubt for link in links.values())
    least, most = (
        price_edits(exchange.replay, "incast=off", f"link*{pace:.6f}", saving_only=True).saving
        or 0.0
        for pace in (1 / (1 + doubt), 1 + doubt)
    )
    drawn = found[0].interval or (0.0, 0.0)
    return [replace(found[0], interval=join_intervals(price.saving, drawn, (least, most)))]


def _slower(exchange: Exchange, columns: list[int], kind: Bound) -> list[Finding]:
    """Report shards that take longer per byte than the others."""
    if len(exchange.shards) < 2 or exchange.moved is None or not columns:
        return []
    if np.isnan(_share(exchange, columns, kind)):
        return []
    per_byte = _work(exchange, kind) / np.maximum(exchange.moved, 1)
    usual, patterns = np.ones(len(exchange.shards)), {}
    lost_ns = np.zeros(len(per_byte))
    for column in columns:
        others = np.median(np.delete(per_byte, column, axis=1), axis=1)
        pattern = _pattern(per_byte[:, column], others)
        if pattern is not None:
            patterns[column] = pattern
            usual[column] = per_byte[:, column].sum() / max(float(others.sum()), 1e-12)
            over_ns = np.maximum(per_byte[:, column] - others, 0.0) * exchange.moved[column]
            lost_ns = np.maximum(lost_ns, over_ns)
    if not patterns:
        return []
    slow = [*patterns]
    ratio = float(usual[slow].max())
    pattern = patterns[int(np.argmax(usual))]
    share = _share(exchange, slow, kind)
    edits = [f"shard:{exchange.shards[column]},{_PARTS[kind]}=median" for column in slow]
    lost = None if pattern == "persistent" else (exchange.steps, lost_ns)
    return _report(
        exchange,
        slow,
        kind,
        price_edits(exchange.replay, *edits, lost=lost),
        at_most=float(lost_ns.sum()) / exchange.job_ns,
        fields=_busy(exchange, slow, kind, share) | {"ratio": f"{ratio:.1f}"},
        evidence={"share_of_window": share, "times_per_byte": ratio},
        case=f"slower {_case(share if pattern == 'persistent' else 0.0)}".rstrip(),
        slowdown=ratio,
        pattern=pattern,
    )


def _pattern(mine: Floats, others: Floats) -> Pattern | None:
    """Return when a shard takes longer than the others, [step]; None where by chance or not at all."""
    ratio = MIN_RATIO_OF_TIME_PER_BYTE
    if mine.sum() < ratio * others.sum() or not mine.any():
        return None
    if np.mean(mine > (1 + ratio) / 2 * others) >= MIN_SHARE_OF_STEPS_IF_SHARD_ALWAYS_SLOW:
        return "persistent"
    slow = np.flatnonzero(mine > ratio * others)
    longest = int(np.argmax(mine - others))
    rest = np.delete(mine, longest).sum() >= ratio * np.delete(others, longest).sum()
    if len(slow) < MIN_SLOW_STEPS_OF_SHARD or not rest:
        return None
    extent = slow[-1] - slow[0] + 1
    return "transient" if len(slow) >= MIN_SHARE_OF_STEPS_IF_TRANSIENT * extent else "sparse"


def _all_alike(
    exchange: Exchange, columns: list[int], kind: Bound, price: EditPrice
) -> list[Finding]:
    """Report what twice the processors, or the bandwidth, would save."""
    share = _share(exchange, columns, kind)
    twice = {"more": f"twice the {'processors' if kind == 'cpu' else 'bandwidth'}"}
    return _report(
        exchange,
        columns,
        kind,
        price,
        at_most=float(_work(exchange, kind)[:, columns].max(axis=1).sum()) / 2 / exchange.job_ns,
        fields=_busy(exchange, columns, kind, share) | ({} if price.saving is None else twice),
        evidence={"share_of_window": share},
        case=_case(share),
    )


def _case(share: float) -> str:
    """Return the case of the sentence for a share of the window: no part that idles is bound."""
    return "" if share >= MIN_BUSY_SHARE_IF_BOUND else "at times"


def _work(exchange: Exchange, kind: Bound) -> Floats:
    return exchange.cpu if kind == "cpu" else exchange.wire


def _share(exchange: Exchange, columns: list[int], kind: Bound) -> float:
    """Return in what share of their windows parts of some shards are at work, nan if not recorded."""
    window = exchange.push_window + (exchange.pull_window if kind == "network" else 0)
    shares = exchange.busy_shares()[kind == "network"]
    if np.isnan(shares[columns]).any():
        return float("nan")
    return float(_work(exchange, kind)[:, columns].sum() / max(window[:, columns].sum(), 1))


def _busy(exchange: Exchange, columns: list[int], kind: Bound, share: float) -> dict[str, str]:
    """Return who is bound by what, and how busy that is."""
    subject = f"{_subject(exchange, columns)} {'is' if len(columns) == 1 else 'are'}"
    return {"who": subject, "busy": fmt.percent(share), "part": _PARTS[kind]} | _BUSY[kind]


def _report(
    exchange: Exchange,
    columns: list[int],
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
    """Report some shards, if fixing them saves enough; with a slowdown that is a fault.

    `at_most` is a share of the job that nothing exceeds, by which it is judged where no price is known.
    """
    worth = at_most if price.saving is None else price.saving
    is_fault = slowdown is not None
    if worth < (MIN_SAVING_TO_REPORT_SERVER_FAULT if is_fault else MIN_SAVING_TO_REPORT_UPGRADE):
        return []
    is_known = price.saving is not None
    finding = Finding.of(
        _KINDS[kind],
        fields if is_known else {**fields, "refusal": price.refusal},
        case=case if is_known else f"{case} not priced".lstrip(),
        category="fault" if is_fault else "opportunity",
        shards=tuple(exchange.shards[column] for column in columns),
        hosts=exchange.hosts_of(columns),
        phase="ps",
        pattern=pattern,
        saving=price.saving,
        interval=price.interval,
        fix=price.fix,
        slowdown=slowdown,
        evidence={**evidence, "edits": price.edits},
    )
    return [finding]


def _subject(exchange: Exchange, columns: list[int]) -> str:
    if len(columns) == len(exchange.shards) > 1:
        return "Both PS shards" if len(columns) == 2 else f"All {len(columns)} PS shards"
    return fmt.listing("PS shard", [exchange.shards[column] for column in columns])
