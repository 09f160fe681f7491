"""One module a page; a page is added by its module and one line in `PAGES`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tracelens_dashboard.pages import (
    collectives,
    compare,
    critical_path,
    interleaving,
    overview,
    shards,
    stacks,
    steps,
    stragglers,
    timeline,
)

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store


class Page(Protocol):
    """What a page's module offers; `TITLE` is its entry in the sidebar."""

    PATH: str
    TITLE: str

    def layout(self, store: Store, view: ViewState) -> Component:
        """Return the page for the view in the address bar."""

    def register(self, app: Dash) -> None:
        """Add the page's callbacks; each is told which run it is about (`tracelens_dashboard.asked`)."""


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
    compare,
)
