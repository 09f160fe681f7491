"""Build the web application over runs, and serve it until Ctrl-C: here, or to a network by token."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
import webbrowser
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dash
from dash import Dash, set_props

from tracelens.errors import TraceLensError
from tracelens.load import open as open_trace
from tracelens_dashboard import ids, pages
from tracelens_dashboard.app import glossary, guards, loading, run_list, shell, wire
from tracelens_dashboard.app.guards import LOOPBACK, Access
from tracelens_dashboard.app.listening import listen
from tracelens_dashboard.components import chart
from tracelens_dashboard.export import downloads
from tracelens_dashboard.pages import PAGES
from tracelens_dashboard.runs import current
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view import state

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from dash.development.base_component import Component

    from tracelens_dashboard.view.state import ViewState

ASSETS: Final = Path(__file__).parents[1] / "assets"
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
MISSING_FILES: Final = (
    "Files of this run were moved or removed while it was shown: choose another run from the "
    "list, or serve this one from where it is now."
)
NETWORK: Final = (
    "Anyone with this address can see the run, and traffic is not encrypted; "
    "safer is a tunnel: ssh -L {port}:127.0.0.1:{port} {name}\n"
)

_log = logging.getLogger(__name__)


def create_app(served: Runs | Store, access: Access | None = None) -> Dash:
    """Return the application over runs, or over one; `access` says who may see it."""
    runs = served if isinstance(served, Runs) else Runs.from_store(served)
    app = Dash(
        "tracelens_dashboard",
        use_pages=True,
        pages_folder="",
        assets_folder=str(ASSETS),
        assets_path_ignore=["^early$"],  # what stands in INDEX itself
        index_string=INDEX.replace("{library}", wire.LIBRARY_ADDRESS),
        title="TraceLens",
        update_title="",
        suppress_callback_exceptions=True,
        serve_locally=True,
        enable_mcp=False,
        on_error=_report_error,
    )
    app.server.config[current.RUNS] = runs
    for page in PAGES:
        _add(page.PATH, page.TITLE, partial(loading.lay_out_page, page))
    pages.register(app)
    _add(run_list.PATH, run_list.TITLE, run_list.layout)
    _add(glossary.PATH, glossary.TITLE, glossary.layout)
    run_list.register(app)
    loading.register(app, PAGES)
    loading.register_growth(app, PAGES)
    chart.register(app)
    shell.register(app, PAGES)
    downloads.register(app)
    wire.register(app)
    app.layout = shell.shell(runs, PAGES)
    guards.protect(app, access)
    return app


def _add(path: str, title: str, layout: Callable[[Runs, ViewState], Component]) -> None:
    """Add a page; `layout` builds it from the served runs and the view in the address."""

    def lay_out(**query: str) -> Component:
        return layout(current.runs_of_app(), state.parse(query))

    dash.register_page(
        f"tracelens_dashboard.pages{path.replace('/', '.')}",
        path=path,
        name=title,
        title=f"{title} · TraceLens",
        layout=lay_out,
    )


def _report_error(error: Exception) -> Any:
    """Show that something failed, where the user looks; the log has the details."""
    sentence = str(error)
    if isinstance(error, FileNotFoundError):
        sentence = MISSING_FILES
    elif not isinstance(error, TraceLensError):
        _log.error("a page could not be drawn", exc_info=error)
        sentence = "Something on this page could not be drawn; the terminal has the details."
    set_props(ids.ERROR_NOTICE, {"hide": False, "children": sentence})


def serve(
    source: Runs | Store | str | os.PathLike[str],
    host: str = LOOPBACK,
    port: int = 8050,
    *,
    token: bool = True,
    open_browser: bool = False,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve several runs, or one, opened or to be opened; returns on Ctrl-C, or on SIGTERM.

    Visitors show a token, which is part of the address: others have accounts on this machine, too.
    Without one (`token`), every account on this machine sees the run. `port` 0 picks a free one;
    `ready` is called with the address once requests are accepted; `open_browser` opens it there.

    Raises:
        InvalidArgument: `host` is no address of this machine, the port is taken, or the run would be
            shown to a network without a token.
        UnusableInput: the trace cannot be read.
    """
    host = host.removeprefix("[").removesuffix("]")  # as addresses are written in links
    access = Access.from_host(host, token=token)
    runs = source if isinstance(source, Runs) else Runs.from_store(_open_store(source))
    server = listen(create_app(runs, access).server, host, port)
    url = access.make_address(host, server.effective_port)
    # The server's loop returns when it is interrupted; it may be before it or after it, too.
    with closing(server), closing(runs), suppress(KeyboardInterrupt), _interrupted_by_sigterm():
        runs.survey(enabled=not runs.only_store)
        _announce(url, host, server.effective_port)
        if ready:
            ready(url)
        if open_browser:
            webbrowser.open(url)
        server.run()


def _announce(url: str, host: str, port: int) -> None:
    sys.stdout.write(f"TraceLens is at {url} (Ctrl-C ends)\n")
    if not guards.is_this_machine(host):
        sys.stdout.write(NETWORK.format(port=port, name=socket.gethostname()))
    sys.stdout.flush()


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does: what runs in the background ignores SIGINT.

    Only the main thread may handle signals; a server in another thread is ended otherwise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former_handler)


def _open_store(source: Store | str | os.PathLike[str]) -> Store:
    if not isinstance(source, Store):
        return _open_store(Store.open(Path(source), lambda: open_trace(source)))
    source.refine()
    return source
