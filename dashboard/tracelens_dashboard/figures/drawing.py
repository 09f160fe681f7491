"""What a figure function returns: the picture, what it says in one sentence, and its numbers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import theme as themes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracelens_dashboard.theme import Theme

LINE_LETTERS: Final = 48  # that a narrow window shows in a line

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Drawing:
    """A figure, the sentence that says what it shows, and its table, or what makes it.

    A table of a long run is made only when a user opens it.
    """

    figure: go.Figure
    summary: str
    table: Rows | Callable[[], Rows] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        """The rows of the table."""
        return self.table() if callable(self.table) else self.table


def empty(theme: Theme, sentence: str) -> Drawing:
    """Return, in a figure's place, the reason for its absence."""
    note = {
        "text": "<br>".join(textwrap.wrap(sentence, LINE_LETTERS, break_on_hyphens=False)),
        "showarrow": False,
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "font": {"color": theme.secondary, "size": 13},
    }
    blank = {"visible": False}
    return Drawing(figure(theme, annotations=[note], xaxis=blank, yaxis=blank), sentence)


def figure(theme: Theme, *traces: go.Figure, **layout: Any) -> go.Figure:
    """Make a figure in a theme."""
    return go.Figure(list(traces), layout={"template": themes.template(theme.name), **layout})


def panels(titles: Sequence[str], theme: Theme, spacing: float, **layout: Any) -> go.Figure:
    """Make a figure in a theme with panels from left to right, whose rows are the same."""
    plot = make_subplots(
        cols=max(len(titles), 1),
        shared_yaxes=True,
        horizontal_spacing=spacing,
        subplot_titles=list(titles),
    )
    plot.update_layout(template=themes.template(theme.name), **layout)
    plot.update_annotations(font={"size": 12, "color": theme.secondary})
    return plot


def bars(labels: Any, lengths: Any, colour: Any, hover: str, **options: Any) -> go.Bar:
    """Draw horizontal bars without edges; `hover` is the template of the text under the mouse."""
    marker = {"color": colour, "line": {"width": 0}}
    settings = {"orientation": "h", "marker": marker, "hovertemplate": f"{hover}<extra></extra>"}
    return go.Bar(x=lengths, y=labels, **(settings | options))


def dots(x: Any, y: Any, marker: dict[str, Any], hover: str, **options: Any) -> go.Scatter:
    """Draw dots; `hover` is the template of the text under the mouse."""
    settings = {"mode": "markers", "marker": marker, "hovertemplate": f"{hover}<extra></extra>"}
    return go.Scatter(x=x, y=y, **(settings | options))


def pairs(texts: Iterable[str], links: Iterable[Any]) -> list[list[Any]]:
    """Return custom data of marks: the text under the mouse, and where a click leads."""
    return [[hover, list(link) if link else None] for hover, link in zip(texts, links, strict=True)]


def intervals(low: Any, middle: Any, high: Any, colour: str, **options: Any) -> dict[str, Any]:
    """Return the error bars from `low` to `high` around `middle` (arrays)."""
    settings = {"type": "data", "symmetric": False, "color": colour}
    return settings | {"array": high - middle, "arrayminus": middle - low} | options
