"""One finding as a card: what it costs, whom it names, and where to see it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens.accounting.phases import OWN_CATEGORIES
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.inert import clean
from tracelens_dashboard import text, theme
from tracelens_dashboard.view import links

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dash.development.base_component import Component

    from tracelens.model.findings import Finding
    from tracelens_dashboard.runs.store import Store

MOST_CARDS: Final = 3  # of a page
NOTHING: Final = 0.0005  # of the job's time: less than a tenth of a point


def title(finding: Finding) -> str:
    """Return the finding in a few words: ``Straggler: rank 2, backprop, step 4``."""
    where = [text.steps(*finding.steps)] if finding.steps else []
    if finding.phase in OWN_CATEGORIES:
        where = [theme.name_of(finding.phase), *where]
    details = ", ".join(filter(None, (_subject(finding), *where)))
    return ": ".join(filter(None, (KINDS[finding.kind].title, details)))


def amount(finding: Finding) -> tuple[str, str]:
    """Return its saving or cost in percent of job time, and a colour: fault, opportunity, neither."""
    cost = finding.saving if finding.saving is not None else finding.cost
    if cost is None or cost < NOTHING:
        return "!" if finding.category == "fault" else "i", "quiet"
    return f"\N{MINUS SIGN}{text.percent(cost)}", finding.category


def first_of(store: Store, findings: Iterable[Finding]) -> Component:
    """Return the cards of the first findings that a page explains."""
    cards = [card(store, one) for one in islice(findings, MOST_CARDS)]
    return dmc.Stack(cards, gap="sm", mb="sm" if cards else 0)


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


def _subject(finding: Finding) -> str:
    hosts = clean(", ".join(finding.hosts[: fmt.MOST_LISTED]))
    if finding.shards:
        return text.listing("PS shard", finding.shards)
    if finding.ranks and not (hosts and KINDS[finding.kind].names_hosts):
        return text.listing("rank", finding.ranks)
    return hosts


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
    page = KINDS[finding.kind].page
    if page and not (finding.shards and page.path == links.SHARDS):
        ways.append((page.label, links.to_page(store, page.path, finding)))
    step = links.to_worst_step(store, finding)
    if step:
        ways.append(("Worst step", step))
    alone = links.to_steps(store, links.OVERVIEW, finding)
    if alone:
        ways.append(("Only these steps", alone))
    fixed = links.fix_of(store, finding)
    if fixed:
        ways.append(("What if it were fixed", links.to_replay(store, fixed)))
    return [dcc.Link(label, href=href, className="way") for label, href in ways]
