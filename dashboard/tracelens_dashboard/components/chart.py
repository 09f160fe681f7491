"""A chart in a card: title, one sentence, the graph, the same numbers as a table; a click leads on.

The server answers a click into the chart's card, and the browser goes there: callbacks that answer
into the frame are called whenever a page is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html

from tracelens_dashboard import ids, theme
from tracelens_dashboard.components import fields
from tracelens_dashboard.components.heading import card_title
from tracelens_dashboard.components.table import table
from tracelens_dashboard.figures import axes
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import GRAPH_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dash.dependencies import DashDependency
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

DRAWN_CLASS: Final = "plot"
NOTHING_DRAWN_CLASS: Final = "plot nothing"  # the sentence stands above it
PLOT_PX: Final = 290
HALF_WIDTH: Final = {"base": 12, "lg": 6}  # columns of twelve, by the width of the window
HALF_WIDTH_FROM_MEDIUM: Final = {"base": 12, "md": 6}


@dataclass(frozen=True, kw_only=True)
class ChartCard:
    """A chart of a page as data: its texts, its size, its drawing, and the target of clicks.

    `draw(store, theme, *values)` gets the values of `inputs`; all of these have defaults, with
    which the report draws it. `link_from_mark(store, point, *values)`, with the values of
    `link_states`, and `link_from_row(store, row_index)` return an address or None. `lay_out_choice`
    returns a field next to the title. In a narrow window a plot may be wider than its card
    (`is_scrollable`): the keyboard reaches it.
    """

    card_id: str
    title: str
    explanation: str
    draw: Callable[..., Drawing]
    height_px: int | Callable[[Store], int] = PLOT_PX
    grid_columns: int | Mapping[str, int] = 12
    inputs: tuple[Input, ...] = ()
    link_from_mark: Callable[..., str | None] | None = None
    link_states: tuple[State, ...] = ()
    link_from_row: Callable[[Store, int], str | None] | None = None
    lay_out_choice: Callable[[Store, ViewState], Component] | None = None
    is_scrollable: bool = False
    title_suffix: str = ""  # which run it is about

    def height_px_of(self, store: Store) -> int:
        """Return the height of the plot in pixels; it fills a higher card."""
        return self.height_px if isinstance(self.height_px, int) else self.height_px(store)

    def lay_out(self, store: Store, view: ViewState) -> Component:
        """Return the card, in its column of the page's grid."""
        height_css = f"{self.height_px_of(store)}px"
        switch_id = ids.part(self.card_id, "switch")
        switch = dmc.Switch(id=switch_id, label="Table", size="xs", className="table-switch")
        save_button = png_button(self.title + self.title_suffix)
        tools = html.Div([save_button, switch], className="card-tools")
        heading = [card_title(self.title, self.explanation, suffix=self.title_suffix), tools]
        if self.lay_out_choice:
            choice = self.lay_out_choice(store, view)
            heading.insert(1, html.Div([choice], className="card-choices"))
        card = dmc.Card(
            [
                html.Div(heading, className="card-heading"),
                dcc.Store(id=ids.part(self.card_id, "lead")),
                html.P(id=ids.part(self.card_id, "summary"), className="summary"),
                html.Div(
                    graph(ids.part(self.card_id, "graph")),
                    id=ids.part(self.card_id, "plot"),
                    role="img",
                    **aria(self.title),  # until it is drawn: then the sentence about what it shows
                    className=DRAWN_CLASS,
                    style={"minHeight": height_css},
                    tabIndex=0 if self.is_scrollable else None,
                ),
                html.Div(
                    id=ids.part(self.card_id, "grid"), hidden=True, style={"height": height_css}
                ),
            ],
            className="card chart-card",
        )
        return dmc.GridCol(card, span=self.grid_columns)

    def register(self, app: Dash) -> None:
        """Draw the chart whenever the colour scheme, the run or an input changes; follow clicks."""
        self._register_drawing(app)
        if self.link_from_mark:
            self._register_marks(app, self.link_from_mark)
        if self.link_from_row:
            self._register_rows(app, self.link_from_row)

    def _register_drawing(self, app: Dash) -> None:
        """Draw the chart; its table is made when it is asked for, so that charts come first."""
        # `checked`: the table is shown; `values`: the colour scheme, the run, the inputs.
        table_switch = Input(ids.part(self.card_id, "switch"), "checked")
        table_id = ids.part(self.card_id, "grid")
        scheme_input = Input(ids.SCHEME, "computedColorScheme")

        def draw(scheme: str | None, run_key: Any, *values: Any) -> Drawing:
            scheme_theme = theme.for_scheme(current.prevent_update_unless(scheme))
            return self.draw(current.store_of_run(run_key), scheme_theme, *values)

        @app.callback(
            Output(ids.part(self.card_id, "graph"), "figure"),
            Output(ids.part(self.card_id, "summary"), "children"),
            Output(ids.part(self.card_id, "plot"), "aria-label"),
            Output(ids.part(self.card_id, "plot"), "className"),
            Output(table_id, "children"),
            _as_state(table_switch),
            scheme_input,
            Input(ids.RUN, "data"),  # drawn anew when it was read again
            *self.inputs,
        )
        def redraw(checked: Any, *values: Any) -> tuple[Any, ...]:
            """Return figure, summary (twice), class, a table if `checked`; `values` are for `draw`."""
            drawing = draw(*values)
            class_name = DRAWN_CLASS if drawing.figure.data else NOTHING_DRAWN_CLASS
            rows = table(ids.part(self.card_id, "rows"), drawing.rows) if checked else None
            return drawing.figure, drawing.summary, drawing.summary, class_name, rows

        @app.callback(
            Output(table_id, "children", allow_duplicate=True),
            table_switch,
            *(_as_state(dependency) for dependency in (scheme_input, current.RUN, *self.inputs)),
            prevent_initial_call=True,
        )
        def tabulate(checked: Any, *values: Any) -> Component:
            """Return the table when it is switched on; `values` are for `draw`."""
            current.prevent_update_unless(bool(checked))
            return table(ids.part(self.card_id, "rows"), draw(*values).rows)

    def _register_marks(self, app: Dash, link: Callable[..., str | None]) -> None:
        """Go to where `link` leads from the mark that is clicked."""

        @app.callback(
            Output(ids.part(self.card_id, "lead"), "data", allow_duplicate=True),
            Input(ids.part(self.card_id, "graph"), "clickData"),
            current.RUN,
            *self.link_states,
            prevent_initial_call=True,
        )
        def follow_mark(click: dict[str, Any] | None, run_key: Any, *values: Any) -> str:
            """Return the address to which a clicked mark leads; `values` are those of `link_states`."""
            point = axes.read_cell_values(current.prevent_update_unless(clicked_point(click)))
            return current.prevent_update_unless(
                link(current.store_of_run(run_key), point, *values)
            )

    def _register_rows(self, app: Dash, link: Callable[[Store, int], str | None]) -> None:
        """Go to where `link` leads from the row of the table that is clicked."""

        @app.callback(
            Output(ids.part(self.card_id, "lead"), "data", allow_duplicate=True),
            Input(ids.part(self.card_id, "rows"), "cellClicked"),
            current.RUN,
            prevent_initial_call=True,
        )
        def follow_row(cell: dict[str, Any] | None, run_key: Any) -> str:
            """Return the address to which the row of a clicked cell leads."""
            store, row_index = (
                current.store_of_run(run_key),
                current.prevent_update_unless(clicked_row(cell)),
            )
            return current.prevent_update_unless(link(store, row_index))


def clicked_point(click_data: Any) -> dict[str, Any] | None:
    """Return the first point of a click on a graph; None without one."""
    points = (click_data or {}).get("points")
    return points[0] if points else None


def clicked_row(clicked_cell: Any) -> int | None:
    """Return a clicked cell's row by its index in the drawing, however the table is sorted."""
    row_id = str((clicked_cell or {}).get("rowId"))
    return int(row_id) if row_id.isdecimal() else None


def _as_state(dependency: DashDependency) -> State:
    return State(dependency.component_id, dependency.component_property)


def grid(cards: Iterable[ChartCard], store: Store, view: ViewState) -> Component:
    """Lay out the cards of a page in a grid of twelve columns."""
    return dmc.Grid([card.lay_out(store, view) for card in cards], gutter="sm")


def from_tables(draw: Callable[..., Drawing], *table_names: str) -> Callable[..., Drawing]:
    """Return a card's `draw` that hands tables of the run, then the theme, to a function of figures."""

    def draw_tables(store: Store, card_theme: theme.Theme) -> Drawing:
        return draw(*map(store.analysis_table, table_names), card_theme)

    return draw_tables


def fit_rows(
    count_rows: Callable[[Store], int],
    *,
    frame_px: int,
    row_px: int,
    least_px: int,
    most_px: int = 9999,
) -> Callable[[Store], int]:
    """Return the function of a card's height, px: a frame, and `row_px` for each row that it counts."""
    return lambda store: max(least_px, min(most_px, frame_px + row_px * count_rows(store)))


def rank_count(store: Store) -> int:
    """Count the ranks, for `fit_rows`."""
    return len(store.ranks)


def graph(identity: Any, height_px: int | None = None, config: Any = GRAPH_CONFIG) -> dcc.Graph:
    """Return a graph with the configuration that all charts share, or the timelines."""
    style = {"height": f"{height_px}px"} if height_px else {}
    return dcc.Graph(id=identity, figure=theme.blank(), config=config, style=style, responsive=True)


def png_button(title: str) -> Component:
    """Return the button that saves the card's chart as shown; assets/export.js makes it work."""
    options = {"size": "compact-xs", "className": "save-png", "fw": 500}
    return fields.button("PNG", **options, **aria(f"save as PNG: {title}"))


def register(app: Dash) -> None:
    """Let every card's switch show its table in place of its graph; go where a chart leads."""
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "swap"),
        Output({"chart": MATCH, "part": "plot"}, "hidden"),
        Output({"chart": MATCH, "part": "grid"}, "hidden"),
        Input({"chart": MATCH, "part": "switch"}, "checked"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "follow"),
        Output(ids.GO, "href", allow_duplicate=True),
        Input({"chart": ALL, "part": "lead"}, "data"),
        prevent_initial_call=True,
    )
