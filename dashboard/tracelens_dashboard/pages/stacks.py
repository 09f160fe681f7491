"""Which code takes the time, and in which of it does a straggler spend more than its peers?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html

from tracelens.lod import stacks
from tracelens.lod.viewport import Window
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import chart, fields, heading
from tracelens_dashboard.components.chart import ChartCard, fit_rows
from tracelens_dashboard.figures import sampled_stacks
from tracelens_dashboard.runs import current
from tracelens_dashboard.theme import Theme, name_of
from tracelens_dashboard.view import links, peer_stacks, state, viewport

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Drawing
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

PATH: Final = links.STACKS
TITLE: Final = "Stacks"
HEADING: Final = "Sampled stacks"
EXPLANATION: Final = (
    "Python code that samples met on a rank, compared with the median of its peers."
)
QUESTION: Final = "Which code takes the time?"
RANK: Final = "stack-rank"
PHASE: Final = "stack-phase"
VIEW: Final = "stack-view"
FRAME: Final = "stack-frame"
LONGEST_FRAME: Final = 2000  # letters
NO_DATA: Final = (
    "No call stacks were sampled in this run. With py-spy installed (pip install py-spy), record "
    "it with"
)
COMMAND: Final = "tracelens record --sample -- COMMAND"
WHAT_IT_SHOWS: Final = (
    "Then this page shows in which code a rank spends its time, in a phase and steps, compared "
    "with its peers; a straggler's finding names the function."
)
CHOICES: Final = (Input(RANK, "value"), Input(PHASE, "value"), Input(VIEW, "data"))


def _draw_calls(store: Store, theme: Theme, *choice: Any) -> Drawing:
    comparison = peer_stacks.read(store, *choice) if choice else peer_stacks.from_findings(store)
    stacks_of_rank, stacks_of_peers = peer_stacks.measure_stacks(store, comparison)
    calls = stacks.list_calls(stacks_of_rank, stacks_of_peers)
    return sampled_stacks.icicle(calls, comparison.rank, len(stacks_of_peers), theme)


def _draw_functions(store: Store, theme: Theme, *choice: Any) -> Drawing:
    comparison = peer_stacks.read(store, *choice) if choice else peer_stacks.from_findings(store)
    frames = stacks.list_frames(*peer_stacks.measure_stacks(store, comparison))
    return sampled_stacks.by_function(frames, comparison.rank, theme)


def _draw_times(store: Store, theme: Theme, *values: Any) -> Drawing:
    """Draw when a frame was on stacks: the chosen one, at first that with the largest residual."""
    # The values are those of `CHOICES`, and the frame's name.
    *comparison_values, frame_name = values
    comparison = peer_stacks.read(store, *comparison_values)
    if not isinstance(frame_name, str):
        frames = stacks.list_frames(*peer_stacks.measure_stacks(store, comparison))
        frame_name = "" if frames.is_empty() else str(frames["frame"][0])
    window, ranks = comparison.window, (comparison.rank, *comparison.peer_ranks)
    shares_by_rank = {
        rank: stacks.measure_share_over_time(
            store.samples_of_rank(rank), frame_name, window, sampled_stacks.BIN_COUNT
        )
        for rank in ranks
        if frame_name
    }
    origin_ns = store.run_window.start_ns
    return sampled_stacks.over_time(shares_by_rank, frame_name, window, origin_ns, theme)


def _link_to_moment(store: Store, point: dict[str, Any]) -> str | None:
    rank, start_ns, end_ns = point.get("customdata") or (None, None, None)
    if rank not in store.ranks or not (isinstance(start_ns, int) and isinstance(end_ns, int)):
        return None
    window = Window(start_ns, end_ns).shift(store.run_window.start_ns)
    return links.to_moment(store, window, (int(rank),))


CALLS: Final = ChartCard(
    card_id="stack-calls",
    title="Calls (red: longer than on peers)",
    explanation="Who called whom; width: time on the stack.",
    draw=_draw_calls,
    height_px=380,
    inputs=CHOICES,
)
FUNCTIONS: Final = ChartCard(
    card_id="stack-frames",
    title="Functions by residual against peers",
    explanation="Self time of functions here minus the median peer's.",
    draw=_draw_functions,
    height_px=400,
    inputs=CHOICES,
)
TIMES: Final = ChartCard(
    card_id="stack-times",
    title="Time on the stack",
    explanation="When the chosen function was on the stack of which rank.",
    draw=_draw_times,
    height_px=fit_rows(
        lambda store: min(len(store.sampled_ranks), peer_stacks.MOST_PEERS + 1),
        frame_px=100,
        row_px=26,
        least_px=200,
    ),
    inputs=(*CHOICES, Input(FRAME, "data")),
    link_from_mark=_link_to_moment,
)
CARDS: Final[tuple[ChartCard, ...]] = (CALLS, FUNCTIONS, TIMES)


def layout(store: Store, view: ViewState) -> Component:
    """Return the page, or say how to record what it shows."""
    title = heading.page_title(HEADING, EXPLANATION)
    if not store.sampled_ranks:
        lines = (NO_DATA, dmc.Code(COMMAND, block=True), WHAT_IT_SHOWS)
        return heading.page_in_words([title], *lines, identity="no-stacks")
    window = _find_window(store, view)
    return html.Div(
        [
            dcc.Store(id=VIEW, data=[window.start_ns, window.end_ns]),
            dcc.Store(id=FRAME),
            html.Div([title, _lay_out_controls(store, view)], className="page-heading"),
            html.P(_describe_scope(store, view, window), className="summary"),
            chart.grid(CARDS, store, view),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Let a click on a frame choose it; follow a run that grows."""
    for card in (CALLS, FUNCTIONS):
        _register_choice(app, card.card_id)

    @app.callback(
        Output(VIEW, "data"),
        Input(ids.RUN, "data"),
        State(ids.GO, "search"),
        prevent_initial_call=True,
    )
    def renew_window(run_key: Any, query_string: Any) -> list[int]:
        """Return the window to show (begin, end, ns) of a run that was read again."""
        current.prevent_update_unless(bool(current.edition_number_of(run_key)))
        window = _find_window(current.store_of_run(run_key), state.read(query_string))
        return [window.start_ns, window.end_ns]


def _register_choice(app: Dash, chart_name: str) -> None:
    """Let a click on a chart, or on a row of its table, choose a frame."""

    @app.callback(
        Output(FRAME, "data", allow_duplicate=True),
        Input(ids.part(chart_name, "graph"), "clickData"),
        prevent_initial_call=True,
    )
    def choose_mark(click_data: Any) -> str:
        """Return the frame of the clicked mark of the chart."""
        return _read_frame(
            current.prevent_update_unless(chart.clicked_point(click_data)).get("customdata")
        )

    @app.callback(
        Output(FRAME, "data", allow_duplicate=True),
        Input(ids.part(chart_name, "rows"), "cellClicked"),
        State(ids.part(chart_name, "rows"), "rowData"),
        prevent_initial_call=True,
    )
    def choose_row(clicked_cell: Any, rows: Any) -> str:
        """Return the frame of the clicked row of the table."""
        row_index = current.prevent_update_unless(chart.clicked_row(clicked_cell))
        row = rows[row_index] if rows and row_index < len(rows) else {}
        return _read_frame(row.get("call") or row.get("frame"))


def _read_frame(value: Any) -> str:
    is_frame = isinstance(value, str) and 0 < len(value) <= LONGEST_FRAME
    return str(current.prevent_update_unless(value if is_frame else None))


def _lay_out_controls(store: Store, view: ViewState) -> Component:
    """Return the fields for the rank and the phase."""
    rank = peer_stacks.choose_rank(store, view.pinned_ranks)
    rank_choices = [
        (str(sampled_rank), f"rank {sampled_rank}") for sampled_rank in store.sampled_ranks
    ]
    names = (peer_stacks.ALL_TIME, *store.category_times.categories)
    phase_choices = [(name, name_of(name)) for name in names]
    phase = peer_stacks.choose_phase(store, rank)
    return dmc.Group(
        [
            fields.select(RANK, rank_choices, "rank", value=str(rank), searchable=True, limit=50),
            fields.select(PHASE, phase_choices, "phase", value=phase),
        ],
        gap="xs",
    )


def _find_window(store: Store, view: ViewState) -> Window:
    """Return the window of the link, else that of its steps, else the whole run; absolute."""
    steps = view.marked_steps if view.start_ns is None else None
    window_of_steps = store.window_of_steps(*steps) if steps else None
    if window_of_steps:
        return window_of_steps
    return viewport.window_of_view(store, view).shift(store.run_window.start_ns)


def _describe_scope(store: Store, view: ViewState, window: Window) -> list[Any]:
    """Name the part of the run that is shown, with a link to all of it."""
    if window == store.run_window:
        return [f"{QUESTION} The whole run; a finding's link “Sampled code” narrows it."]
    begin_text = text.duration(window.start_ns - store.run_window.start_ns)
    length_text = text.duration(window.width_ns)
    time_text, steps = f"{length_text} from {begin_text} on", view.marked_steps
    extent_text = text.steps(*steps) if steps else time_text
    link = dcc.Link("show the whole run", href=links.to_stacks(store), className="way")
    return [f"{QUESTION} A part of the run: {extent_text}; ", link, "."]
