"""What a figure function returns: the picture, what it says in one sentence, and its numbers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from plotly import graph_objects as go

from tracelens_dashboard import theme as themes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_dashboard.theme import Theme

LINE: Final = 48  # letters that a narrow window shows beside each other


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Drawing:
    """A figure, the sentence that says what it shows, and its table, or what makes it.

    A table of what a long run holds is made only when it is asked for.
    """

    figure: go.Figure
    summary: str
    table: Rows | Callable[[], Rows] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        """The rows of the table."""
        return self.table() if callable(self.table) else self.table


def empty(theme: Theme, sentence: str) -> Drawing:
    """Return, in a figure's place, why there is none."""
    note = {
        "text": "<br>".join(textwrap.wrap(sentence, LINE, break_on_hyphens=False)),
        "showarrow": False,
        "x": 0.5,
        "y": 0.5,
        "xref": "paper",
        "yref": "paper",
        "font": {"color": theme.secondary, "size": 13},
    }
    blank = {"visible": False}
    layout = {"annotations": [note], "xaxis": blank, "yaxis": blank}
    return Drawing(figure(theme, **layout), sentence)


def figure(theme: Theme, *traces: go.Figure, **layout: Any) -> go.Figure:
    """Make a figure in a theme."""
    return go.Figure(list(traces), layout={"template": themes.template(theme.name), **layout})
