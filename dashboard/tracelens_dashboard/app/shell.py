"""The frame around every page: name of the run, pages, colour scheme, help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash
import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from tracelens_dashboard import ids, text
from tracelens_dashboard.app.run_list import PATH as RUN_LIST
from tracelens_dashboard.components import fields, live, selection_bar
from tracelens_dashboard.components.heading import GLOSSARY
from tracelens_dashboard.export import menu
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.view import state
from tracelens_dashboard.view.state import ViewState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from tracelens_dashboard.pages import Page
    from tracelens_dashboard.runs.catalog import Runs

NO_VIEW: Final = ViewState()
PATIENCE_S: Final = 1.0
HEADER_PX: Final = 52
SIDEBAR_PX: Final = 168
BUTTON_PX: Final = 30
KEYS: Final = (
    ("1 … 9", "go to a page"),
    ("w, s", "timeline: zoom in, zoom out"),
    ("a, d", "timeline: move left, move right"),
    ("0", "timeline: show the whole run"),
    ("f", "timeline: fit to the selected span, else to the finding's steps"),
    ("p", "timeline: pin or unpin the rank under the mouse"),
    ("o", "timeline: open or close the group or process under the mouse, else the selected one"),
    ("[, ]", "timeline: previous and next step; in a wide view, finding"),
    ("m", "timeline: put a note at the mouse, or over the marked area; the link keeps it"),
    ("/", "find spans in the timeline by name, kind, bucket or shard; runs in their list"),
    ("Enter, n, N", "timeline: the next, or the previous, of what is found"),
    ("Shift and drag", "timeline: mark a time range, or an area: its spans as a table"),
    ("Esc", "close the details of a span, else show the whole run again: all ranks and steps"),
    ("?", "this help"),
)


def shell(runs: Runs, pages: Sequence[Page]) -> Component:
    """Return the layout that pages are shown in: header, sidebar, help, and the export dialog."""
    frame = dmc.AppShell(
        [
            dmc.AppShellHeader(_header(runs), className="header"),
            dmc.AppShellNavbar(
                html.Nav(_link_pages(runs, pages, NO_VIEW), id=ids.SIDEBAR, **aria("pages")),
                p="xs",
                className="sidebar",
            ),
            dmc.AppShellMain([_error_notice(), dash.page_container], className="main"),
        ],
        id=ids.SHELL,
        header={"height": HEADER_PX},
        navbar=navbar(opened=False),
        padding="sm",
    )
    return dmc.MantineProvider(
        [dcc.Location(id=ids.GO, refresh="callback-nav"), frame, _help(), menu.dialog()],
        defaultColorScheme="auto",
        theme={"primaryColor": "blue", "autoContrast": True},
    )


def navbar(*, opened: bool) -> dict[str, object]:
    """Describe the sidebar; on narrow windows it opens over the page."""
    return {"width": SIDEBAR_PX, "breakpoint": "sm", "collapsed": {"mobile": not opened}}


def register(app: Dash, pages: Sequence[Page]) -> None:
    """Register the header, sidebar, help and dialogs; they follow the run in the address."""
    _register_run(app, pages)
    menu.register(app)
    selection_bar.register(app)
    live.register(app)
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


def _register_run(app: Dash, pages: Sequence[Page]) -> None:
    """Let heading, sidebar and picker follow the run in the address, and the picker choose it."""

    @app.callback(
        Output(ids.HEADING, "children"),
        Output(ids.SIDEBAR, "children"),
        Output(ids.PICKER, "data"),
        Output(ids.PICKER, "value"),
        Input(ids.GO, "search"),
    )
    def follow(query_string: Any) -> tuple[Any, ...]:
        """Return heading, links to pages, and the picker's runs and chosen id, for an address."""
        runs, view = current.runs_of_app(), state.read(query_string)
        run_selection = selection.read(view.run_key) if runs.find_entry(view.run_key) else None
        page_links = _link_pages(runs, pages, view)
        shown_id = run_selection.run_id if run_selection else None
        return heading(runs, view), page_links, list_choices(runs), shown_id

    @app.callback(
        Output(ids.HEADING, "children", allow_duplicate=True),
        Input(ids.RUN, "data"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def renew_heading(run_key: Any, query_string: Any) -> list[Component]:
        """Return the heading of a run that was read again."""
        current.prevent_update_unless(bool(current.edition_number_of(run_key)))
        return heading(current.runs_of_app(), state.read(query_string))

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(ids.PICKER, "value"),
        State(ids.GO, "search"),
        State(ids.GO, "pathname"),
        prevent_initial_call=True,
    )
    def pick(run_id: Any, query_string: Any, path: Any) -> str:
        """Link to the run that was picked, on the same page and with the same baselines."""
        view = state.read(query_string)
        run_selection = selection.read(view.run_key)
        is_other = run_selection is None or run_id != run_selection.run_id
        current.prevent_update_unless(is_other and current.runs_of_app().find_entry(run_id))
        page_paths = {page.PATH for page in pages}
        return ViewState(run_key=run_id, baseline_ids=view.baseline_ids).make_link(
            path if path in page_paths else "/"
        )


def heading(runs: Runs, view: ViewState) -> list[Component]:
    """Return the size of the shown run as soon as it is open; of one served alone its name, too."""
    if runs.only_store and view.run_key is None:
        name, size = text.clean_name(runs.only_store.name), current.describe_size(runs.only_store)
        return [html.B(name), html.Span(size, className="chip-facts")]
    entry = runs.find_entry(view.run_key)
    if entry is None:
        return [html.B(text.count(len(runs.list_entries()), "run"))]
    store = runs.open_store(entry, PATIENCE_S)
    size = current.describe_size(store) if store else "is being opened"
    return [html.Span(size, className="chip-facts")]


def list_choices(runs: Runs) -> list[dict[str, str]]:
    """List the runs to choose from, by name."""
    entries = sorted(runs.list_entries(), key=lambda entry: entry.name.casefold())
    return [{"value": entry.run_key, "label": text.clean_name(entry.name)} for entry in entries]


def _header(runs: Runs) -> Component:
    left_side = dmc.Group(
        [
            dmc.Burger(id=ids.BURGER, size="sm", hiddenFrom="sm", **aria("pages")),
            dcc.Link("TraceLens", href="/", className="brand"),
            _picker(runs),
            html.Span(heading(runs, NO_VIEW), className="chip", id=ids.HEADING),
        ],
        gap="sm",
        wrap="nowrap",
        className="header-left",
    )
    return dmc.Group(
        [
            left_side,
            dmc.Group(
                [_copy_link(), menu.button(), _help_button(), _scheme_switch()],
                gap="xs",
                wrap="nowrap",
            ),
        ],
        h="100%",
        px="md",
        justify="space-between",
        wrap="nowrap",
    )


def _picker(runs: Runs) -> Component:
    """Return the menu of runs; None if only one is served."""
    options = {"placeholder": "Choose a run", "searchable": True, "limit": 50}
    picker = dmc.Select(
        id=ids.PICKER, data=[], allowDeselect=False, size="xs", className="picker", **options,
        **aria("run"),
    )  # fmt: skip
    return html.Div(picker, hidden=runs.only_store is not None, className="picker")


def _copy_link() -> Component:
    """Return the button that copies the address of the view; assets/copying.js makes it work."""
    options = {"size": "sm", "fw": 500, "px": "sm", "visibleFrom": "md", "className": "copy-link"}
    return fields.button("Copy link", **options, **aria("copy a link to this view"))


def _help_button() -> Component:
    name = aria("keyboard help")
    return dmc.ActionIcon("?", id=ids.HELP_BUTTON, variant="default", size=BUTTON_PX, **name)


def _scheme_switch() -> Component:
    return dmc.ColorSchemeToggle(
        id=ids.SCHEME,
        lightIcon=html.Span("☀", className="icon"),
        darkIcon=html.Span("☾", className="icon"),
        variant="default",
        size=BUTTON_PX,
        **aria("switch between light and dark"),
    )


def _link_pages(runs: Runs, pages: Sequence[Page], view: ViewState) -> list[Component]:
    """Return links to the pages of the run that is shown, and to the list of runs."""
    if runs.only_store:
        run_view = ViewState(run_key=view.run_key)
        return [_entry(page.TITLE, run_view.make_link(page.PATH)) for page in pages]
    list_link = dmc.NavLink(label="All runs", href=RUN_LIST, active="exact", className="runs-link")
    if runs.find_entry(view.run_key) is None:
        return [list_link]
    comparison_view = ViewState(run_key=view.run_key, baseline_ids=view.baseline_ids)
    return [
        list_link,
        *(_entry(page.TITLE, comparison_view.make_link(page.PATH)) for page in pages),
    ]


def _entry(title: str, href: str) -> Component:
    return dmc.NavLink(label=title, href=href, active="exact", className="page-link")


def _error_notice() -> Component:
    return dmc.Alert(
        id=ids.ERROR_NOTICE, title="This could not be shown", color="red", hide=True, mb="sm"
    )


def _help() -> Component:
    """Return the dialog with all keys, which the button "?" opens."""
    key_rows = [html.Tr([html.Td(dmc.Kbd(keys)), html.Td(action)]) for keys, action in KEYS]
    mouse_text = "In the timeline: wheel to zoom, drag to move, click a span for its details."
    glossary = dcc.Link("Glossary: what the words mean", href=GLOSSARY, className="way")
    body = [
        html.Table(html.Tbody(key_rows), className="keys"),
        html.P(mouse_text, className="summary"),
        glossary,
    ]
    close_label = aria("close")
    return dmc.Modal(body, id=ids.HELP, title="Keys", opened=False, closeButtonProps=close_label)
