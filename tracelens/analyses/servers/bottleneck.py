"""What binds parameter servers: processors, links, or links that collapse when many push at once.

Where workers are queued or transfer for a tenth of their time, each shard's windows are looked at
(`utilisation.py`). It is bound by its **processor** if that is at work for 80 % of the push window, by
the **network** if its link is for 80 % of both windows and the processor for less than a fifth, by
**incast** if a third of the goodput that its link reaches with fewer messages is lost with many. A
shard that takes twice as long per byte as the others is a fault, as is incast; servers that are all
alike are an opportunity, priced as if each had twice the processor, or bandwidth. What fixing it saves
is found by replaying the exchange (`replay/exchange.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens.analyses.servers import small_messages
from tracelens.model import fmt
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.stats.constants import (
    BUSY,
    CLEARLY_SLOWER,
    CONSISTENT,
    ENOUGH,
    FEW,
    FEWEST_ROUNDS,
    MAJORITY,
    NOTICEABLE,
    WORTH_ADVICE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.analyses.servers.small_messages import Messages
    from tracelens.analyses.servers.utilisation import Goodput
    from tracelens.arrays import Floats
    from tracelens.model.findings import Pattern
    from tracelens.replay.exchange import Exchange
    from tracelens.replay.parameter_servers import Change

__all__ = ["Bound", "classify", "findings"]
Bound = Literal["cpu", "network", "incast"]

FEWEST_STEPS: Final = FEWEST_ROUNDS
SATURATED: Final = BUSY
IDLE: Final = ENOUGH
COLLAPSED: Final = CLEARLY_SLOWER
RECEIVING: Final = MAJORITY  # of the push window, or the incoming link is not what holds it up
SLOWER: Final = CLEARLY_SLOWER  # times as long per byte as the other shards
STEADY: Final = CONSISTENT  # of the steps show it, half as clearly
FEWEST_PAUSES: Final = FEW  # steps, where fewer do; without the longest it must be so, too
FAULT: Final = NOTICEABLE  # of the job
CHANCE: Final = NOTICEABLE
CLEAR: Final = WORTH_ADVICE  # of the job, where only the gain speaks for it
_KINDS: Final[dict[Bound, str]] = {
    "cpu": "ps_cpu_bound",
    "network": "ps_network_bound",
    "incast": "ps_incast",
}
_PARTS: Final[dict[Bound, str]] = {"cpu": "cpu", "network": "wire"}
_BUSY: Final[dict[Bound, dict[str, str]]] = {
    "cpu": {"bound": "CPU", "part": "processor", "window": "push"},
    "network": {"bound": "network", "part": "link", "window": "push/pull"},
}


@dataclass(frozen=True, eq=False)
class _Case:
    """What is reported of some shards, and what changes if they are fixed."""

    columns: list[int]
    kind: Bound
    change: Change
    fields: Mapping[str, str]  # of the sentence
    evidence: Mapping[str, Any]
    slowdown: float | None = None
    how: str = ""  # that workers wait though it is not at work all the time
    pattern: Pattern = "persistent"


def classify(exchange: Exchange, goodput: dict[int, Goodput]) -> dict[int, Bound]:
    """Return what binds each shard (by its column), where it is clear."""
    found: dict[int, Bound] = {}
    push = np.maximum(exchange.push_window.sum(axis=0), 1)
    both = np.maximum(push + exchange.pull_window.sum(axis=0), 1)
    cpu, wire = exchange.cpu.sum(axis=0) / push, exchange.wire.sum(axis=0) / both
    receiving = exchange.received.sum(axis=0) / push
    for column, shard in enumerate(exchange.shards):
        link = goodput.get(shard)
        # What messages cost by themselves is lost however few share the link.
        lost = link.collapse * (1 - exchange.message_share) if link else 1.0
        collapsed = link is not None and link.falls and lost >= COLLAPSED
        if collapsed and receiving[column] >= RECEIVING:
            found[column] = "incast"
        elif cpu[column] >= SATURATED:
            found[column] = "cpu"
        elif wire[column] >= SATURATED and cpu[column] < IDLE:
            found[column] = "network"
    return found


def findings(
    exchange: Exchange, bound: dict[int, Bound], goodput: dict[int, Goodput], messages: Messages
) -> list[Finding]:
    """Report what binds, each kind once; of a kind, shards slower than others first.

    Instead of more bandwidth, fewer messages are advised where they save more.
    """
    found = _what_binds(exchange, bound, goodput)
    alike = [one for one in found if one.kind != _KINDS["network"] or one.category == "fault"]
    if found and len(alike) == len(found):
        return found
    fused = small_messages.find(exchange, messages)
    best = max((one.saving or 0.0 for one in found), default=0.0)
    return [*alike, *fused] if fused and (fused[0].saving or 0.0) > best else found


def _what_binds(
    exchange: Exchange, bound: dict[int, Bound], goodput: dict[int, Goodput]
) -> list[Finding]:
    if len(exchange.exposed) < FEWEST_STEPS:
        return []
    found = []
    order: tuple[Bound, ...] = ("incast", "cpu", "network")
    for kind in order:
        columns = [column for column, what in bound.items() if what == kind]
        if columns and kind == "incast":
            found += _incast(exchange, columns, goodput)
        elif columns:
            found += _slower(exchange, columns, kind) or _all_alike(exchange, columns, kind)
    return found or _by_gain(exchange)


def _by_gain(exchange: Exchange) -> list[Finding]:
    """Report shards that are slow per byte, where pushes are too far apart to fill a window.

    If all are alike, report which of both would help more, or both if they help about as much.
    """
    everywhere = list(range(len(exchange.shards)))
    kinds: tuple[Bound, ...] = ("cpu", "network")
    slower = [finding for kind in kinds for finding in _slower(exchange, everywhere, kind)]
    if slower:
        return slower
    gains = {kind: exchange.saving(_faster(exchange, everywhere, kind, 0.5))[0] for kind in kinds}
    best = max(kinds, key=lambda kind: gains[kind])
    if gains[best] < CLEAR:
        return []
    helping = [kind for kind in kinds if gains[kind] > gains[best] / 2]
    return [one for kind in helping for one in _all_alike(exchange, everywhere, kind)]


def _incast(exchange: Exchange, columns: list[int], goodput: dict[int, Goodput]) -> list[Finding]:
    links = [goodput[exchange.shards[column]] for column in columns]
    worst = max(links, key=lambda link: link.collapse)
    change = exchange.change(columns)
    change.ns_per_byte[columns] = [1 / link.best for link in links]
    fields = {
        "who": f"{_subject(exchange, columns)} {'receives' if len(columns) == 1 else 'receive'}",
        "usual": fmt.bandwidth(worst.usual),
        "pushes": f"{worst.crowd:.0f}",
        "best": f"{fmt.bandwidth(worst.best)} {'in replies' if worst.sent else 'when fewer do'}",
    }
    evidence = {
        "goodput": worst.usual,
        "best_goodput": worst.best,
        "pushes_at_once": worst.crowd,
        "sent_goodput": worst.sent,
        "goodput_by_pushes": dict(zip(map(str, worst.counts), worst.rates, strict=True)),
    }
    case = _Case(columns, "incast", change, fields, evidence, worst.collapse)
    doubtful = []
    for sign in (-TWO_SIDED, TWO_SIDED):
        other = exchange.change(columns)
        other.ns_per_byte[columns] = [1 / link.best / (1 + sign * link.doubt) for link in links]
        doubtful.append(exchange.saving(other)[0])
    return [_widened(found, *doubtful) for found in _reported(exchange, case)]


def _widened(found: Finding, least: float, most: float) -> Finding:
    """Join the doubt about single rounds with that about the goodput."""
    saving, (low, high) = found.saving or 0.0, found.interval or (0.0, 0.0)
    below, above = np.hypot(saving - low, saving - least), np.hypot(high - saving, most - saving)
    return replace(
        found, interval=(max(saving - float(below), 0.0), min(saving + float(above), 1.0))
    )


def _slower(exchange: Exchange, columns: list[int], kind: Bound) -> list[Finding]:
    """Report shards that take longer per byte than the others."""
    work: Floats = getattr(exchange, _PARTS[kind])
    if len(exchange.shards) < 2 or exchange.moved is None:
        return []
    per_byte = work / np.maximum(exchange.moved, 1)
    usual, patterns = np.ones(len(exchange.shards)), {}
    for column in columns:
        others = np.median(np.delete(per_byte, column, axis=1), axis=1)
        pattern = _pattern(per_byte[:, column], others)
        if pattern is not None:
            patterns[column] = pattern
            usual[column] = per_byte[:, column].sum() / max(float(others.sum()), 1e-12)
    if not patterns:
        return []
    slow = [*patterns]
    ratio = float(usual[slow].max())
    pattern = patterns[int(np.argmax(usual))]
    share = _share(exchange, slow, kind)
    fields = _busy(exchange, slow, kind, share) | {"ratio": f"{ratio:.1f}"}
    evidence = {"share_of_window": share, "times_per_byte": ratio}
    change = _faster(exchange, slow, kind, 1 / usual[slow])
    how = _how(share if pattern == "persistent" else 0.0)
    return _reported(exchange, _Case(slow, kind, change, fields, evidence, ratio, how, pattern))


def _pattern(mine: Floats, others: Floats) -> Pattern | None:
    """Return when a shard takes longer than the others, [step]; None where by chance or not at all."""
    if mine.sum() < SLOWER * others.sum() or not mine.any():
        return None
    if np.mean(mine > (1 + SLOWER) / 2 * others) >= STEADY:
        return "persistent"
    slow = np.flatnonzero(mine > SLOWER * others)
    longest = int(np.argmax(mine - others))
    rest = np.delete(mine, longest).sum() >= SLOWER * np.delete(others, longest).sum()
    if len(slow) < FEWEST_PAUSES or not rest:
        return None
    return "transient" if len(slow) >= STEADY * (slow[-1] - slow[0] + 1) else "sparse"


def _all_alike(exchange: Exchange, columns: list[int], kind: Bound) -> list[Finding]:
    """Report what twice the processors, or the bandwidth, would save."""
    share = _share(exchange, columns, kind)
    more = {"cpu": "twice the processors", "network": "twice the bandwidth"}[kind]
    fields = _busy(exchange, columns, kind, share) | {"more": more}
    change = _faster(exchange, columns, kind, 0.5)
    evidence = {"share_of_window": share}
    return _reported(exchange, _Case(columns, kind, change, fields, evidence, how=_how(share)))


def _how(share: float) -> str:
    """Return the case of the sentence for a share of the window: no part that idles is bound."""
    return "" if share >= SATURATED else "at times"


def _faster(exchange: Exchange, columns: list[int], kind: Bound, takes: Floats | float) -> Change:
    if kind == "cpu":
        return exchange.change(columns, cpu=takes)
    return exchange.change(columns, wire=takes)


def _share(exchange: Exchange, columns: list[int], kind: Bound) -> float:
    window = exchange.push_window + (exchange.pull_window if kind == "network" else 0)
    work: Floats = getattr(exchange, _PARTS[kind])
    return float(work[:, columns].sum() / max(window[:, columns].sum(), 1))


def _busy(exchange: Exchange, columns: list[int], kind: Bound, share: float) -> dict[str, str]:
    """Return who is bound by what, and how busy that is."""
    verb = "is" if len(columns) == 1 else "are"
    return {"who": f"{_subject(exchange, columns)} {verb}", "busy": fmt.percent(share)} | _BUSY[
        kind
    ]


def _reported(exchange: Exchange, case: _Case) -> list[Finding]:
    """Make the finding, if it saves enough; one with a slowdown is a fault."""
    saving, interval = exchange.saving(case.change)
    if saving < (CHANCE if case.slowdown is None else FAULT):
        return []
    finding = Finding.of(
        _KINDS[case.kind],
        case.fields,
        case=" ".join(filter(None, ("slower" * ("ratio" in case.fields), case.how))),
        category="opportunity" if case.slowdown is None else "fault",
        shards=tuple(exchange.shards[column] for column in case.columns),
        hosts=tuple(dict.fromkeys(exchange.hosts[column] for column in case.columns)),
        phase="ps",
        pattern=case.pattern,
        saving=saving,
        interval=interval,
        slowdown=case.slowdown,
        evidence=case.evidence,
    )
    return [finding]


def _subject(exchange: Exchange, columns: list[int]) -> str:
    if len(columns) == len(exchange.shards) > 1:
        return "Both PS shards" if len(columns) == 2 else f"All {len(columns)} PS shards"
    return fmt.listing("PS shard", [exchange.shards[column] for column in columns])
