"""The dialog “Export”: the report of the run, and what the page shows for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.exceptions import PreventUpdate

from tracelens_dashboard import ids, text
from tracelens_dashboard.components import fields
from tracelens_dashboard.export import downloads
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import state

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

BUTTON: Final = "export-button"
DIALOG: Final = "export"
OFFER: Final = "export-offer"
ADDRESS: Final = "export-address"
REPORT_HELP: Final = (
    "Verdict, findings, charts and tables in one HTML file that works offline and loads nothing."
)
PERFETTO_HELP: Final = (
    "The recorded spans of the timeline's window, of the pinned ranks or of all, as JSON for "
    "ui.perfetto.dev, where it stays in the browser."
)
PICTURE_HELP: Final = "Each chart has a PNG button that saves it as shown."


def button() -> Component:
    """Return the button of the header."""
    return fields.button("Export", BUTTON, size="sm", fw=500, px="sm")


def dialog() -> Component:
    """Draw the form that it opens."""
    waiting = dcc.Loading(html.Div(id=OFFER), delay_show=300, type="dot")
    return html.Div(
        [
            dcc.Store(id=ADDRESS),
            dmc.Modal(
                waiting, id=DIALOG, title="Export", opened=False, closeButtonProps=aria("close")
            ),
        ]
    )


def register(app: Dash) -> None:
    """Open the dialog for the view in the address bar just then."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "exported"),
        Output(DIALOG, "opened"),
        Output(ADDRESS, "data"),
        Input(BUTTON, "n_clicks"),
        prevent_initial_call=True,
    )

    @app.callback(Output(OFFER, "children"), Input(ADDRESS, "data"), prevent_initial_call=True)
    def offer(address: Any) -> list[Component]:
        """List the exports of the run and the view in the page's address."""
        if not isinstance(address, dict):
            raise PreventUpdate
        view = state.read(address.get("search"))
        if view.run_key is None and not current.runs_of_app().only_store:
            return [html.P("Choose a run first.", className="summary")]
        return _offers(current.store_of_run(view.run_key), view)


def _offers(store: Store, view: ViewState) -> list[Component]:
    view_of_run = state.ViewState(run_key=view.run_key)
    return [
        dmc.Title("Report", order=2, className="card-title"),
        html.P(REPORT_HELP, className="summary"),
        _download("Download the report", view_of_run.make_link(downloads.REPORT)),
        dmc.Title("Perfetto", order=2, className="card-title", mt="md"),
        html.P(PERFETTO_HELP, className="summary"),
        *_selected(store, view),
        dmc.Title("Pictures", order=2, className="card-title", mt="md"),
        html.P(PICTURE_HELP, className="summary"),
    ]


def _selected(store: Store, view: ViewState) -> list[Component]:
    """Return the size of the selection and its download, or the reason for no download."""
    selection = downloads.selection_of(store, view)
    size_or_refusal = downloads.measure(store, selection)
    if isinstance(size_or_refusal, str):
        return [html.P(size_or_refusal, role="alert")]
    event_text = text.count(size_or_refusal.event_count, "event")
    amount = f"{event_text}, about {text.size(size_or_refusal.size_bytes)}"
    sentence = f"{downloads.selection_sentence(store, selection)}: {amount}."
    return [
        html.P(sentence, id="export-size", className="fact"),
        _download("Download this selection", view.make_link(downloads.PERFETTO)),
    ]


def _download(label: str, href: str) -> Component:
    return html.A(label, href=href, download="", className="way")
