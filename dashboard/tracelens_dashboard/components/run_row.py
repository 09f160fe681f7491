"""One run in the list of runs: what it was, how well it ran, and where its index stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dash import dcc, html

from tracelens.reports.words import clean
from tracelens_dashboard import text
from tracelens_dashboard.components import sparkline
from tracelens_dashboard.state import ViewState

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens.lod.glance import Glance
    from tracelens_dashboard.entries import Entry


@dataclass(frozen=True)
class Row:
    """A run, and what is known of it before it is opened; null = it has to be read first."""

    entry: Entry
    glance: Glance | None

    @property
    def name(self) -> str:
        """What the run is called."""
        return text.shown(self.entry.name)

    @property
    def words(self) -> str:
        """All that can be searched for."""
        return f"{self.entry.name} {self.glance.verdict if self.glance else ''}".casefold()


def draw(row: Row) -> Component:
    """Return the row; its link covers all of it."""
    glance = row.glance
    link = dcc.Link(row.name, href=ViewState(run=row.entry.id).link("/"), className="stretched")
    cells = [
        html.Td([link, html.Div(_sizes(glance), className="fact-name")], className="run-name"),
        html.Td(_efficiency(glance), className="run-number"),
        html.Td(_pace(glance), className="run-pace"),
        html.Td(_verdict(row), className="run-verdict"),
        html.Td(standing(row), className="run-index"),
    ]
    return html.Tr(cells, className="finding run-row")


def _sizes(glance: Glance | None) -> str:
    if glance is None:
        return ""
    parts = [
        text.count(glance.ranks, "rank"),
        text.count(glance.shards, "shard") if glance.shards else "",
        text.count(glance.steps, "step"),
        text.duration(glance.duration_ns),
    ]
    return " · ".join(part for part in parts if part)


def _efficiency(glance: Glance | None) -> Component:
    if glance is None or glance.efficiency is None:
        return html.Span("not known", className="fact-name")
    share = 100 * glance.efficiency
    meter = html.Div(className="meter-fill", style={"width": f"{share:.1f}%"})
    return html.Div([html.B(text.percent(glance.efficiency)), html.Div(meter, className="meter")])


def _pace(glance: Glance | None) -> list[Component]:
    if glance is None or not glance.steps:
        return []
    usual = f"{text.duration(glance.step_ns)} a step"
    line = sparkline.line(glance.pace_ns, f"step time over the run, {usual}")
    return [line, html.Div(usual, className="fact-name")]


def _verdict(row: Row) -> Component:
    stage = row.entry.stage
    if stage.kind == "failed":
        return html.Span(stage.what, role="alert", className="points-fault")
    if row.glance is None:
        return html.Span("It is read and explained when it is first opened.", className="fact-name")
    more = f" and {row.glance.faults - 1} more" if row.glance.faults > 1 else ""
    told = [html.Span(clean(row.glance.verdict))]
    return html.Span([*told, html.Span(more, className="fact-name")])


def standing(row: Row) -> Component:
    """Say where a run's index stands."""
    stage = row.entry.stage
    said = "ready" if row.glance else "not read yet"
    if stage.kind == "failed":
        said = "cannot be read"
    elif stage.kind == "queued":
        said = "waits its turn"
    elif stage.under_way:
        share = f" {100 * stage.done // stage.total} %" if stage.total else ""
        said = f"{stage.what}{share}"
    kind = "busy" if stage.under_way else stage.kind
    return html.Span(said, className=f"standing standing-{kind}")
