"""One finding as a card: what it costs, whom it names, and where to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens.accounting.phases import COMPUTE_CATEGORIES
from tracelens.model import fmt
from tracelens.reports.messages import clean
from tracelens_dashboard import text, theme
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens.model.result import Finding
    from tracelens_dashboard.runs.store import Store

NOTHING: Final = 0.0005  # of the job's time: less than a tenth of a point
# What a finding's page shows beside it, and where that is.
_LATE: Final = ("Among all ranks", "/stragglers")
_CALLS: Final = ("All collectives", "/collectives")
_STEPS: Final = ("Step by step", "/steps")
_HIDDEN: Final = ("What is hidden", "/interleaving")
PAGES_OF: Final = {
    "straggler": _LATE,
    "slow_host": _LATE,
    "load_imbalance": _LATE,
    "slow_link": _CALLS,
    "congestion": _CALLS,
    "small_messages": _CALLS,
    "desync": _CALLS,
    "hang": _CALLS,
    "slow_all": _STEPS,
    "data_stall": _STEPS,
    "gc_stall": _STEPS,
    "checkpoint_stall": _STEPS,
    "exposed_communication": _HIDDEN,
    "update_gap": _HIDDEN,
    "stale_worker": ("Staleness and fairness", "/shards"),
}
_WHAT: Final = {
    "straggler": "late",
    "slow_host": "slow host",
    "slow_all": "all ranks slow",
    "slow_link": "slow link",
    "congestion": "congestion",
    "load_imbalance": "uneven work",
    "ps_hot_shard": "overloaded shard",
    "ps_cpu_bound": "shards busy computing",
    "ps_network_bound": "shards limited by the network",
    "ps_incast": "requests arrive all at once",
    "small_messages": "small messages",
    "exposed_communication": "communication not hidden",
    "update_gap": "gaps between weight updates",
    "data_stall": "data loading stalls",
    "checkpoint_stall": "checkpoints stall",
    "gc_stall": "garbage collection stalls",
}


def title(finding: Finding) -> str:
    """Say the finding in a few words: ``Rank 2 late: backprop, steps 40-99``."""
    who = _who(finding)
    what = _WHAT.get(finding.kind, finding.kind.replace("_", " "))
    where = [text.steps(*finding.steps)] if finding.steps else []
    if finding.phase in COMPUTE_CATEGORIES:
        where = [theme.name_of(finding.phase), *where]
    if finding.kind == "straggler":
        return ": ".join(filter(None, (f"{who} {what}", ", ".join(where))))
    return ", ".join((_joined(who, what), *where))


def amount(finding: Finding) -> tuple[str, str]:
    """Return its saving or cost in points, and the colour: that of faults, of opportunities, or none."""
    cost = finding.saving if finding.saving is not None else finding.cost
    if cost is None or cost < NOTHING:
        return "!" if finding.category == "fault" else "i", "quiet"
    return f"\N{MINUS SIGN}{text.points(cost)}", finding.category


def card(store: Store, finding: Finding) -> Component:
    """Return the card; all of it is one link, the worst step a second one."""
    points, colour = amount(finding)
    return dmc.Card(
        dmc.Group(
            [
                html.Div(points, className=f"points points-{colour}", title=_explain(finding)),
                html.Div(
                    [
                        dcc.Link(
                            title(finding), href=_target(store, finding), className="stretched"
                        ),
                        html.P(clean(finding.sentence), className="summary"),
                        html.Div(_ways(store, finding), className="ways"),
                    ],
                    className="finding-text",
                ),
            ],
            wrap="nowrap",
            align="flex-start",
            gap="md",
        ),
        className="card finding",
    )


def _who(finding: Finding) -> str:
    if finding.shards:
        return text.listing("Shard", finding.shards)
    if finding.kind == "slow_host" and finding.hosts:
        return clean(", ".join(finding.hosts[: fmt.MOST_LISTED]))
    if finding.ranks:
        return text.listing("Rank", finding.ranks)
    return clean(", ".join(finding.hosts[: fmt.MOST_LISTED]))


def _joined(who: str, what: str) -> str:
    return f"{who}: {what}" if who else what[:1].upper() + what[1:]


def _explain(finding: Finding) -> str:
    if finding.saving is None:
        return "Its cost cannot be determined from this trace."
    if finding.saving < NOTHING:
        return "No rank waits for it: it costs no job time."
    return "Estimated reduction of job time if fixed, in percentage points."


def _target(store: Store, finding: Finding) -> str:
    """Lead to its shard, or to its ranks and steps; one that names neither to its worst step."""
    if finding.shards:
        return links.to_shard(store, finding)
    if finding.ranks or finding.hosts or finding.steps:
        return links.to_timeline(store, finding)
    return links.to_worst_step(store, finding) or links.to_timeline(store, finding)


def _ways(store: Store, finding: Finding) -> list[Component]:
    """Offer the places in which it can be seen, as links above the card's own."""
    ways = []
    if finding.shards:
        ways.append(("Shard", links.to_shard(store, finding)))
    ways.append(("Show in the timeline", links.to_timeline(store, finding)))
    if set(finding.ranks) & set(store.sampled):
        ways.append(("Sampled code", links.to_stacks(store, finding)))
    if finding.kind in PAGES_OF:
        name, path = PAGES_OF[finding.kind]
        ways.append((name, links.to_page(store, path, finding)))
    step = links.to_worst_step(store, finding)
    if step:
        ways.append(("Worst step", step))
    return [dcc.Link(label, href=href, className="way") for label, href in ways]
