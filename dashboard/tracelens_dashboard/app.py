"""Builds the web application over one open run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import dash
from dash import Dash, set_props
from flask import current_app

from tracelens_dashboard import guards, ids, state
from tracelens_dashboard.components import chart, shell
from tracelens_dashboard.pages import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component

    from tracelens_dashboard.access import Access
    from tracelens_dashboard.pages import Page
    from tracelens_dashboard.store import Store

ASSETS: Final = Path(__file__).parent / "assets"
STORE: Final = (
    "tracelens.store"  # in the Flask application: Dash's list of pages is shared by all apps
)
INDEX: Final = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<title>{%title%}</title>
<link rel="icon" href="/assets/icon.svg">
<script src="/assets/early/scheme.js"></script>
{%css%}
</head>
<body>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""

_log = logging.getLogger(__name__)


def create_app(store: Store, access: Access | None = None) -> Dash:
    """Return the application; it serves `store` and nothing else, to whom `access` lets in."""
    app = Dash(
        "tracelens_dashboard",
        use_pages=True,
        pages_folder="",
        assets_folder=str(ASSETS),
        assets_ignore="early",
        index_string=INDEX,
        title="TraceLens",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        enable_mcp=False,
        on_error=_tell,
    )
    app.server.config[STORE] = store
    for page in PAGES:
        _add(page)
        page.register(app, store)
    chart.register_switches(app)
    shell.register(app)
    app.layout = shell.shell(store, PAGES)
    guards.protect(app, access)
    return app


def _add(page: Page) -> None:
    dash.register_page(
        f"tracelens_dashboard.pages{page.PATH.replace('/', '.')}",
        path=page.PATH,
        name=page.TITLE,
        title=f"{page.TITLE} · TraceLens",
        layout=_layout(page),
    )


def _layout(page: Page) -> Callable[..., Component]:
    """Bind a page to the run of the application that is asked."""

    def build(**query: str) -> Component:
        store = cast("Store", current_app.config[STORE])
        return page.layout(store, state.parse(query))

    return build


def _tell(error: Exception) -> Any:
    """Say that something failed, where the user looks; the log has the details."""
    _log.error("a page could not be drawn", exc_info=error)
    sentence = "Something in this page could not be drawn; the terminal says what."
    set_props(ids.TROUBLE, {"hide": False, "children": sentence})
