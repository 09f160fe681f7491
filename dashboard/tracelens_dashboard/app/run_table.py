"""The table of runs: a row each, with its step times as a sparkline, its verdict and its tags."""

from __future__ import annotations

import math
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
import numpy as np
from dash import dcc, html

from tracelens.model.inert import clean
from tracelens_dashboard import text
from tracelens_dashboard.ids import aria
from tracelens_dashboard.view.state import ViewState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from dash.development.base_component import Component

    from tracelens.lod.run_data import Glance
    from tracelens_dashboard.runs.catalog import Entry

CHOSEN: Final = "run-chosen"
UNTAG: Final = "run-untag"
SPARKLINE_WIDTH: Final = 120
SPARKLINE_HEIGHT: Final = 28
MOST_QUANTILE: Final = 0.98  # a first step that loads libraries would flatten all others
COLUMNS: Final = ("run", "efficiency", "step time", "verdict", "")
UNREAD: Final = "It is read and analyzed when first opened."
QUEUED: Final = "It is analyzed in the background, or at once if it is opened."
READING: Final = "It is being analyzed."
RECORDED: Final = "It is still recorded, and analyzed when it is complete, or opened."
NEWEST: Final = "newest first"
UNGROUPED: Final = "no groups"
NO_TAG: Final = "No tag"
# What a verdict names first, the worst on top; what has none yet is last.
VERDICTS: Final = {
    "fault": "Fault",
    "bottleneck": "Bottleneck",
    "inconclusive": "Inconclusive",
    "healthy": "Healthy",
    "": "Not analyzed yet",
    "failed": "Cannot be read",
}


@dataclass(frozen=True)
class Row:
    """A run, and what is known of it before it is opened.

    `glance` has its sizes and its verdict; it is None where the run has to be read first.
    """

    entry: Entry
    glance: Glance | None
    tags: tuple[str, ...] = ()
    folder_name: str = ""

    @property
    def name(self) -> str:
        """What the run is called."""
        return text.clean_name(self.entry.name)

    @property
    def searchable_text(self) -> str:
        """All that can be searched for."""
        verdict = self.glance.verdict if self.glance else ""
        return " ".join([self.entry.name, verdict, *self.tags]).casefold()

    @property
    def has_failed(self) -> bool:
        """Whether it cannot be read."""
        return self.entry.stage.kind == "failed"

    @property
    def verdict_key(self) -> str:
        """Which of `VERDICTS` it has."""
        if self.has_failed:
            return "failed"
        return self.glance.state if self.glance else ""

    @property
    def shown_values(self) -> tuple[object, ...]:
        """All that its row shows."""
        entry = self.entry
        return (
            entry.run_key,
            entry.stage,
            entry.is_recorded,
            self.glance,
            self.tags,
            self.folder_name,
        )


def _measure(row: Row, measure: Callable[[Glance], float | None]) -> float:
    """Return a measure of a run, to sort by; infinite if unknown, so that it comes last."""
    value = measure(row.glance) if row.glance else None
    return math.inf if value is None else value


SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    NEWEST: lambda row: -row.entry.modified_ns,
    "by name": lambda row: row.name.casefold(),
    "lowest efficiency first": lambda row: _measure(row, lambda glance: glance.efficiency),
    "longest steps first": lambda row: _measure(row, lambda glance: -glance.step_ns),
    "most ranks first": lambda row: _measure(row, lambda glance: -glance.ranks),
}


def _by_verdict(row: Row) -> tuple[Any, str]:
    return list(VERDICTS).index(row.verdict_key), VERDICTS[row.verdict_key]


def _by_tags(row: Row) -> tuple[Any, str]:
    """Group runs that have the same tags: each is in one group."""
    title = ", ".join(row.tags)
    return (not row.tags, title.casefold()), title or NO_TAG


# Each returns a group's sort key, and its title.
GROUPS: Final[dict[str, Callable[[Row], tuple[Any, str]] | None]] = {
    UNGROUPED: None,
    "by folder": lambda row: (row.folder_name.casefold(), text.clean_name(row.folder_name)),
    "by verdict": _by_verdict,
    "by tags": _by_tags,
}


def table(
    rows: Sequence[Row],
    order_name: str,
    grouping_name: str,
    chosen_ids: AbstractSet[str] = frozenset(),
) -> Component:
    """Return a table of runs in an order of `SORTS`, in groups of `GROUPS`."""
    # Unknown names stand for the first ones; the boxes of `chosen_ids` are checked.
    ordered_rows = sorted(rows, key=SORTS.get(order_name, SORTS[NEWEST]))
    head = html.Thead(html.Tr([html.Th(name) for name in COLUMNS]))
    find_group = GROUPS.get(grouping_name)
    if find_group is None:
        bodies: list[Component] = [html.Tbody(_draw_rows(ordered_rows, chosen_ids))]
    else:
        rows_by_group: dict[tuple[Any, str], list[Row]] = {}
        for row in ordered_rows:
            rows_by_group.setdefault(find_group(row), []).append(row)
        groups = sorted(rows_by_group.items(), key=lambda group: group[0])
        bodies = [_draw_group(title, members, chosen_ids) for (_, title), members in groups]
    return html.Table([head, *bodies], className="spans runs")


def _draw_group(title: str, rows: list[Row], chosen_ids: AbstractSet[str]) -> Component:
    size_text = html.Span(text.count(len(rows), "run"), className="fact-name")
    heading = html.Th([title, size_text], colSpan=len(COLUMNS), scope="rowgroup")
    return html.Tbody([html.Tr(heading, className="run-group"), *_draw_rows(rows, chosen_ids)])


def _draw_rows(rows: Sequence[Row], chosen: AbstractSet[str]) -> list[Component]:
    return [draw_row(row, chosen=row.entry.run_key in chosen) for row in rows]


def draw_row(row: Row, *, chosen: bool = False) -> Component:
    """Return the row of a run; its link covers all of it, `chosen` checks its box."""
    glance = row.glance
    link = dcc.Link(
        row.name, href=ViewState(run_key=row.entry.run_key).make_link("/"), className="stretched"
    )
    choice_box = dmc.Checkbox(
        id={"type": CHOSEN, "run": row.entry.run_key},
        checked=chosen or None,  # what is drawn with a choice of before takes nothing off it
        size="xs",
        className="way",
        persistence=True,  # as the table is drawn anew while runs are read
        persistence_type="memory",
        **aria(f"choose {row.name}"),
    )
    name_line = html.Div([choice_box, link], className="run-choice")
    details = [
        html.Div(_sizes(glance), className="fact-name"),
        html.Div([_tag(row, tag) for tag in row.tags], className="tags"),
    ]
    cells = [
        html.Td([name_line, *details], className="run-name"),
        html.Td(_draw_efficiency(glance), className="run-number"),
        html.Td(_draw_pace(glance), className="run-pace"),
        html.Td(_draw_verdict(row), className="run-verdict"),
        html.Td(draw_state(row), className="run-index"),
    ]
    return html.Tr(cells, className="finding run-row")


def _tag(row: Row, tag: str) -> Component:
    button = html.Button(
        "\N{MULTIPLICATION SIGN}",
        id={"type": UNTAG, "run": row.entry.run_key, "tag": tag},
        className="untag",
        **aria(f"remove the tag {tag} from {row.name}"),
    )
    return html.Span([tag, button], className="tag")


def _sizes(glance: Glance | None) -> str:
    if glance is None:
        return ""
    sizes = [
        text.count(glance.ranks, "rank"),
        text.count(glance.shards, "shard") if glance.shards else "",
        text.count(glance.steps, "step"),
        text.duration(glance.duration_ns),
    ]
    return " · ".join(filter(None, sizes))


def _draw_efficiency(glance: Glance | None) -> Component:
    if glance is None or glance.efficiency is None:
        return html.Span("not known", className="fact-name")
    share = 100 * glance.efficiency
    meter = html.Div(className="meter-fill", style={"width": f"{share:.1f}%"})
    return html.Div([html.B(text.percent(glance.efficiency)), html.Div(meter, className="meter")])


def _draw_pace(glance: Glance | None) -> list[Component]:
    if glance is None or not glance.steps:
        return []
    pace_text = f"{text.duration(glance.step_ns)} per step"
    line = sparkline(glance.pace_ns, f"step time over the run, {pace_text}")
    return [line, html.Div(pace_text, className="fact-name")]


def _draw_verdict(row: Row) -> Component:
    """Return the verdict of a run and how many more faults it has, or why it has none yet."""
    stage = row.entry.stage
    if row.has_failed:
        return html.Span(stage.failure_sentence, className="points-fault")
    if row.glance is None:
        return html.Span(_explain_absence(row), className="fact-name")
    others_text = f" and {row.glance.faults - 1} more" if row.glance.faults > 1 else ""
    verdict_text = html.Span(clean(row.glance.verdict))
    line = [verdict_text, html.Span(others_text, className="fact-name")]
    return html.Div(line, className=f"lead lead-{row.glance.state}")


def _explain_absence(row: Row) -> str:
    """Return why a run has no verdict yet."""
    if row.entry.stage.is_under_way:
        return QUEUED if row.entry.stage.kind == "queued" else READING
    return RECORDED if row.entry.is_recorded else UNREAD


def draw_state(row: Row) -> Component:
    """Return the state of a run's index, as a word."""
    stage = row.entry.stage
    state_text = "ready" if row.glance else "not read yet"
    if row.entry.is_recorded and row.glance is None:
        state_text = "recording"
    if stage.kind == "failed":
        state_text = "cannot be read"
    elif stage.kind == "queued":
        state_text = "queued"
    elif stage.is_under_way:
        share_text = (
            f" {100 * stage.done_part_count // stage.total_part_count} %"
            if stage.total_part_count
            else ""
        )
        state_text = f"{stage.activity}{share_text}"
    state_class = "busy" if stage.is_under_way else stage.kind
    return html.Span(state_text, className=f"standing standing-{state_class}")


def sparkline(values: Sequence[int], label: str) -> Component:
    """Return numbers as a line from left to right; `label` is its text for screen readers."""
    if len(values) < 2:
        return html.Span(label, className="fact-name")
    mask = f"url(data:image/svg+xml;base64,{b64encode(_svg(values).encode()).decode()})"
    size = {"width": SPARKLINE_WIDTH, "height": SPARKLINE_HEIGHT}
    style = {"maskImage": mask, "WebkitMaskImage": mask} | size
    return html.Span(className="sparkline", style=style, role="img", title=label, **aria(label))


def _svg(values: Sequence[int]) -> str:
    shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*_coordinates(values), strict=True))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {SPARKLINE_WIDTH} "
        f"{SPARKLINE_HEIGHT}'><polyline points='{shape}' fill='none' stroke='#000' "
        "stroke-width='1.5'/></svg>"
    )


def _coordinates(values: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return x and y of the line, in pixels; its scale starts at zero, so that noise stays low."""
    numbers = np.asarray(values, float)
    top_value = max(float(np.quantile(numbers, MOST_QUANTILE)), 1.0)
    height_shares = np.clip(numbers / top_value, 0, 1)
    return (
        np.linspace(1, SPARKLINE_WIDTH - 1, len(numbers)).tolist(),
        (SPARKLINE_HEIGHT - 3 - (SPARKLINE_HEIGHT - 6) * height_shares).tolist(),
    )
