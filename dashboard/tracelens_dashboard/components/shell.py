"""The frame around every page: name of the run, pages, colour scheme, help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import dash
import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html

from tracelens.reports.words import clean
from tracelens_dashboard import ids, text
from tracelens_dashboard.components.aria import aria

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.pages import Page
    from tracelens_dashboard.store import Store

HEADER_PX: Final = 52
SIDEBAR_PX: Final = 168
KEYS: Final = (
    ("1 … 9", "go to a page"),
    ("w, s", "timeline: zoom in, zoom out"),
    ("a, d", "timeline: move left, move right"),
    ("0", "timeline: show the whole run"),
    ("/", "timeline: find spans by name"),
    ("Shift and drag", "timeline: measure a stretch of time"),
    ("?", "this help"),
)


def shell(store: Store, pages: Sequence[Page]) -> Component:
    """Return the layout that pages are shown in."""
    frame = dmc.AppShell(
        [
            dmc.AppShellHeader(_header(store), className="header"),
            dmc.AppShellNavbar(_sidebar(pages), p="xs", className="sidebar"),
            dmc.AppShellMain([_trouble(), dash.page_container], className="main"),
        ],
        id=ids.SHELL,
        header={"height": HEADER_PX},
        navbar=navbar(opened=False),
        padding="sm",
    )
    return dmc.MantineProvider(
        [dcc.Location(id=ids.GO, refresh="callback-nav"), frame, _help()],
        defaultColorScheme="auto",
        theme={"primaryColor": "blue", "autoContrast": True},
    )


def navbar(*, opened: bool) -> dict[str, object]:
    """Describe the sidebar; on narrow windows it opens over the page."""
    return {"width": SIDEBAR_PX, "breakpoint": "sm", "collapsed": {"mobile": not opened}}


def register(app: Dash) -> None:
    """Open and close the sidebar, open the help; let tables follow the colour scheme."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "arrived"),
        Output(ids.BURGER, "opened"),
        Input(ids.GO, "pathname"),
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "sidebar"),
        Output(ids.SHELL, "navbar"),
        Input(ids.BURGER, "opened"),
        State(ids.SHELL, "navbar"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "help"),
        Output(ids.HELP, "opened"),
        Input(ids.HELP_BUTTON, "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "scheme"), Input(ids.SCHEME, "computedColorScheme")
    )


def chip(store: Store) -> str:
    """Say what the run was: ranks, shards, steps, duration."""
    shards = store.shard_count
    parts = [
        text.count(len(store.ranks), "rank"),
        text.count(shards, "shard") if shards else "",
        text.count(store.windows.height, "step"),
        text.duration(store.whole.width_ns),
    ]
    return " · ".join(part for part in parts if part)


def _header(store: Store) -> Component:
    left = dmc.Group(
        [
            dmc.Burger(id=ids.BURGER, size="sm", hiddenFrom="sm", **aria("pages")),
            dcc.Link("TraceLens", href="/", className="brand"),
            html.Span(
                [html.B(clean(store.name)), html.Span(chip(store), className="chip-facts")],
                className="chip",
                id="run",
            ),
        ],
        gap="sm",
        wrap="nowrap",
        className="header-left",
    )
    return dmc.Group(
        [left, dmc.Group([_help_button(), _scheme_switch()], gap="xs", wrap="nowrap")],
        h="100%",
        px="md",
        justify="space-between",
        wrap="nowrap",
    )


def _help_button() -> Component:
    name = aria("keyboard help")
    return dmc.ActionIcon("?", id=ids.HELP_BUTTON, variant="default", size="lg", **name)


def _scheme_switch() -> Component:
    return dmc.ColorSchemeToggle(
        id=ids.SCHEME,
        lightIcon=html.Span("☀", className="icon"),
        darkIcon=html.Span("☾", className="icon"),
        variant="default",
        size="lg",
        **aria("switch between light and dark"),
    )


def _sidebar(pages: Sequence[Page]) -> Component:
    entries = [
        dmc.NavLink(label=page.TITLE, href=page.PATH, active="exact", className="page-link")
        for page in pages
    ]
    return html.Nav(entries, **aria("pages"))


def _trouble() -> Component:
    return dmc.Alert(
        id=ids.TROUBLE, title="This could not be shown", color="red", hide=True, mb="sm"
    )


def _help() -> Component:
    rows = [html.Tr([html.Td(dmc.Kbd(keys)), html.Td(does)]) for keys, does in KEYS]
    mouse = "In the timeline: wheel to zoom, drag to move, click a span for its details."
    body = [html.Table(html.Tbody(rows), className="keys"), html.P(mouse, className="summary")]
    return dmc.Modal(body, id=ids.HELP, title="Keys", opened=False)
