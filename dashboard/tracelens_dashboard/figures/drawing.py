"""What a figure function returns: the picture, what it says in one sentence, and its numbers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from tracelens_dashboard import theme as themes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracelens_dashboard.theme import Theme

LINE_LETTERS: Final = 48  # that a narrow window shows in a line
AT_TOP: Final[Any] = {"y": 1, "yref": "paper", "yanchor": "top"}  # of a plot, on its inside

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
    wrapped = "<br>".join(textwrap.wrap(sentence, LINE_LETTERS, break_on_hyphens=False))
    middle = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"}
    note = label(wrapped, theme.secondary_colour, middle, size=13)
    blank = {"visible": False}
    return Drawing(figure(theme, annotations=[note], xaxis=blank, yaxis=blank), sentence)


def figure(theme: Theme, *traces: go.Figure, **layout: Any) -> go.Figure:
    """Make a figure in a theme."""
    return go.Figure(list(traces), layout={"template": themes.template(theme.scheme), **layout})


def panels(
    titles: Sequence[str], theme: Theme, *, spacing_share: float, **layout: Any
) -> go.Figure:
    """Make a figure with a panel per title, side by side, `spacing_share` of its width apart."""
    plot = make_subplots(
        cols=max(len(titles), 1),
        shared_yaxes=True,
        horizontal_spacing=spacing_share,
        subplot_titles=list(titles),
    )
    plot.update_layout(template=themes.template(theme.scheme), **layout)
    plot.update_annotations(font={"size": 12, "color": theme.secondary_colour})
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


def lines(
    x: Any, y: Any, line: dict[str, Any], hover: str | None = None, **options: Any
) -> go.Scatter:
    """Draw a line; `hover` is the template of the text under the mouse, None for no text."""
    settings: dict[str, Any] = {"mode": "lines", "line": line, "hoverinfo": "skip"}
    if hover is not None:
        settings |= {"hoverinfo": None, "hovertemplate": f"{hover}<extra></extra>"}
    return go.Scatter(x=x, y=y, **(settings | options))


def label(
    text: str, colour: str, *settings: Mapping[str, Any], size: int = 11, **options: Any
) -> dict[str, Any]:
    """Return a text on a plot, without an arrow; `size` is that of its letters in pixels."""
    merged = {"text": text, "showarrow": False, "font": {"size": size, "color": colour}} | options
    return merged | {name: value for setting in settings for name, value in setting.items()}


def vertical_line(
    x: float, line: dict[str, Any], ends: tuple[float, float] = (0, 1)
) -> dict[str, Any]:
    """Return a line at `x`; `ends` are its lower and upper end as shares of the plot's height."""
    sides = {"x0": x, "x1": x, "yref": "paper", "y0": ends[0], "y1": ends[1]}
    return {"type": "line", "line": line} | sides


def pairs(texts: Iterable[str], links: Iterable[Any]) -> list[list[Any]]:
    """Return the custom data of marks: the text under the mouse, and what a click leads to."""
    return [[hover, list(link) if link else None] for hover, link in zip(texts, links, strict=True)]


def intervals(low: Any, middle: Any, high: Any, colour: str, **options: Any) -> dict[str, Any]:
    """Return the error bars from `low` to `high` around `middle` (arrays)."""
    settings = {"type": "data", "symmetric": False, "color": colour}
    return settings | {"array": high - middle, "arrayminus": middle - low} | options
