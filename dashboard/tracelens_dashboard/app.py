"""Builds the web application over the runs that are served."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dash
from dash import Dash, set_props

from tracelens.errors import TraceLensError
from tracelens_dashboard import asked, guards, ids, library, state
from tracelens_dashboard.components import arriving, chart, follow, run_list, shell
from tracelens_dashboard.export import routes
from tracelens_dashboard.pages import PAGES
from tracelens_dashboard.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component

    from tracelens_dashboard.access import Access
    from tracelens_dashboard.pages import Page
    from tracelens_dashboard.store import Store

ASSETS: Final = Path(__file__).parent / "assets"
INDEX: Final = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<title>{%title%}</title>
<link rel="icon" href="/assets/icon.svg">
<script src="/assets/early/scheme.js"></script>
<script src="/assets/early/library.js" data-address="{library}"></script>
<link rel="prefetch" as="script" href="/_dash-component-suites/dash/dcc/async-graph.js">
{%css%}
</head>
<body>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""

GONE: Final = (
    "Files of this run were moved or removed while it was shown: choose another run from the list, or "
    "serve this one from where it is now."
)

_log = logging.getLogger(__name__)


def create_app(served: Runs | Store, access: Access | None = None) -> Dash:
    """Return the application; it shows these runs, or this one, to whom `access` lets in."""
    runs = served if isinstance(served, Runs) else Runs.of(served)
    app = Dash(
        "tracelens_dashboard",
        use_pages=True,
        pages_folder="",
        assets_folder=str(ASSETS),
        assets_path_ignore=["^early$"],  # what stands in INDEX itself
        index_string=INDEX.replace("{library}", library.ADDRESS),
        title="TraceLens",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        enable_mcp=False,
        on_error=_tell,
    )
    app.server.config[asked.RUNS] = runs
    for page in PAGES:
        _add(page.PATH, page.TITLE, _of_run(page))
        page.register(app)
    _add(run_list.PATH, run_list.TITLE, _of_all)
    run_list.register(app)
    arriving.register(app, PAGES)
    chart.register_switches(app)
    follow.register(app)
    shell.register(app, PAGES)
    routes.register(app)
    library.register(app)
    app.layout = shell.shell(runs, PAGES)
    guards.protect(app, access)
    return app


def _add(path: str, title: str, layout: Callable[..., Component]) -> None:
    dash.register_page(
        f"tracelens_dashboard.pages{path.replace('/', '.')}",
        path=path,
        name=title,
        title=f"{title} · TraceLens",
        layout=layout,
    )


def _of_run(page: Page) -> Callable[..., Component]:
    def build(**query: str) -> Component:
        return arriving.place(page, asked.runs(), state.parse(query))

    return build


def _of_all(**query: str) -> Component:
    return run_list.layout(asked.runs(), state.parse(query))


def _tell(error: Exception) -> Any:
    """Say that something failed, where the user looks; the log has the details."""
    sentence = str(error)
    if isinstance(error, FileNotFoundError):
        sentence = GONE
    elif not isinstance(error, TraceLensError):
        _log.error("a page could not be drawn", exc_info=error)
        sentence = "Something in this page could not be drawn; the terminal says what."
    set_props(ids.TROUBLE, {"hide": False, "children": sentence})
