"""One module a page; a page is added by its module and one line in `PAGES`.

A page shows the run in the address bar: `layout` is given it, callbacks ask
`tracelens_dashboard.runs.current` for it, and links of `view.links` lead on within it; `compare` and
`scaling` are about other runs, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tracelens_dashboard.pages import (
    collectives,
    compare,
    critical_path,
    interleaving,
    life,
    live_job,
    overview,
    scaling,
    shards,
    stacks,
    steps,
    stragglers,
    timeline,
    what_if,
)

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.components.chart import ChartCard
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState


class Page(Protocol):
    """What a page's module offers; `TITLE` is its entry in the sidebar, `CARDS` are its charts."""

    PATH: str
    TITLE: str
    CARDS: tuple[ChartCard, ...]

    def layout(self, store: Store, view: ViewState) -> Component:
        """Return the page for the view in the address bar."""


PAGES: Final[tuple[Page, ...]] = (
    overview,
    timeline,
    stragglers,
    steps,
    collectives,
    interleaving,
    shards,
    critical_path,
    stacks,
    life,
    live_job,
    what_if,
    compare,
    scaling,
)


def register(app: Dash) -> None:
    """Add the callbacks of all pages; each is given the run it is about (`runs.current`)."""
    for page in PAGES:
        for card in page.CARDS:
            card.register(app)
    for page_with_callbacks in (compare, live_job, scaling, stacks, timeline, what_if):
        page_with_callbacks.register(app)
