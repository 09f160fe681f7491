"""One finding as a card: what it costs, whom it names, and where to see it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import dash_mantine_components as dmc
from dash import dcc, html

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.model import fmt
from tracelens.model.finding_kinds import KINDS
from tracelens.model.inert import clean
from tracelens_dashboard import text, theme
from tracelens_dashboard.components import live
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view import links
from tracelens_dashboard.view.finding_pages import EVIDENCE_PAGES, SHARDS, is_shown_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash.development.base_component import Component

    from tracelens.model.findings import Finding
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

    Listed = TypeVar("Listed")

MOST_CARDS: Final = 3  # at the top of a page
MAX_LISTED_CARDS: Final = 6  # in a list of a comparison
LEAST_SHARE: Final = 0.0005  # of the job's time: less than a tenth of a point


def title(finding: Finding) -> str:
    """Return the finding in a few words: ``Straggler: rank 2, backprop, step 4``."""
    phase = theme.name_of(finding.phase) if finding.phase in OWN_CATEGORIES else ""
    steps = text.steps(*finding.steps) if finding.steps else ""
    details = ", ".join(filter(None, (_subject(finding), phase, steps)))
    return ": ".join(filter(None, (KINDS[finding.kind].title, details)))


def amount(finding: Finding) -> tuple[str, str]:
    """Return a finding's saving, else its cost, in percent of job time, and the name of its colour."""
    # A sign stands for one that is unknown or next to nothing.
    share = finding.saving if finding.saving is not None else finding.cost
    if share is None or share < LEAST_SHARE:
        return "!" if finding.category == "fault" else "i", "quiet"
    return f"\N{MINUS SIGN}{text.percent(share)}", finding.category


def section_of_page(name: str, path: str) -> Callable[[Store, ViewState], Component]:
    """Return the section with the first cards of the page at `path`; it grows with the run."""

    @live.section(name)
    def lay_out(store: Store, _view: ViewState) -> Component:
        findings = (finding for finding in store.report.findings if is_shown_on(finding, path))
        cards = [card(store, finding) for finding in islice(findings, MOST_CARDS)]
        return dmc.Stack(cards, gap="sm", mb="sm" if cards else 0)

    return lay_out


def titled_cards(
    title: str, items: Sequence[Listed], build_card: Callable[[Listed], Component]
) -> Component:
    """Return a title and the cards of the first items, by `build_card`, and count the others."""
    cards = [build_card(item) for item in items[:MAX_LISTED_CARDS]]
    if not items:
        cards = [html.P("No finding.", className="summary")]
    elif len(items) > MAX_LISTED_CARDS:
        cards.append(html.P(f"and {len(items) - MAX_LISTED_CARDS} more", className="summary"))
    heading = dmc.Title(title, order=2, className="card-title", mb="xs")
    return html.Section([heading, dmc.Stack(cards, gap="xs")], **aria(title))


def card(store: Store, finding: Finding) -> Component:
    """Return the card; all of it is a link to its target, below further links."""
    points_text, colour_name = amount(finding)
    return dmc.Card(
        dmc.Group(
            [
                html.Div(
                    points_text, className=f"points points-{colour_name}", title=_explain(finding)
                ),
                html.Div(
                    [
                        dcc.Link(
                            title(finding), href=_target(store, finding), className="stretched"
                        ),
                        html.P(clean(finding.sentence), className="summary"),
                        html.Div(_link_places(store, finding), className="ways"),
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
    if finding.saving < LEAST_SHARE:
        return "No rank waits for it: it costs no job time."
    return "Estimated reduction of job time if fixed, in percentage points."


def _target(store: Store, finding: Finding) -> str:
    """Lead to its shard, or to its ranks and steps; one that names neither to its worst step."""
    if finding.shards:
        return links.to_shard(store, finding)
    if finding.ranks or finding.hosts or finding.steps:
        return links.to_timeline(store, finding)
    return links.to_worst_step(store, finding) or links.to_timeline(store, finding)


def _link_places(store: Store, finding: Finding) -> list[Component]:
    """Return links to the places in which a finding can be seen, above the card's own link."""
    evidence_page = EVIDENCE_PAGES.get(finding.kind)
    is_sampled = not set(finding.ranks).isdisjoint(store.sampled_ranks)
    fix_edits = links.fix_of(store, finding)
    href_by_label: dict[str, str | None] = {
        "Shard": links.to_shard(store, finding) if finding.shards else None,
        "Show in the timeline": links.to_timeline(store, finding),
        "Sampled code": links.to_stacks(store, finding) if is_sampled else None,
    }
    if evidence_page and not (finding.shards and evidence_page.path == SHARDS):
        href_by_label[evidence_page.label] = links.to_page(store, evidence_page.path, finding)
    href_by_label |= {
        "Worst step": links.to_worst_step(store, finding),
        "Only these steps": links.to_steps(store, links.OVERVIEW, finding),
        "What if it were fixed": links.to_replay(store, fix_edits) if fix_edits else None,
    }
    return [
        dcc.Link(label, href=href, className="way") for label, href in href_by_label.items() if href
    ]
