"""Is the job running, at what pace, and if it stands still: who holds it up?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html

from tracelens.watch.rank_rows import COLUMNS, choose_ranks, describe_rank
from tracelens.watch.sentences import describe_stalled_status
from tracelens_dashboard.components import heading
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dash.development.base_component import Component

    from tracelens.watch.status import JobStatus
    from tracelens.watch.watcher import News
    from tracelens_dashboard.components.chart import ChartCard
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.runs.watched import JobView
    from tracelens_dashboard.view.state import ViewState

PATH: Final = "/live"
TITLE: Final = "Live"
EXPLANATION: Final = (
    "The job as it runs now: its pace, its ranks, and stalls with the stacks of all ranks. "
    "“tracelens watch” shows the same on a terminal."
)
NOT_LIVE: Final = "No process records into the folder of this run now."
NOT_A_FOLDER: Final = "Only a trace folder on this machine can be watched."
POLL: Final = "live-job-poll"
POLL_MS: Final = 1000
JOB: Final = "live-job"
CARDS: Final[tuple[ChartCard, ...]] = ()


def layout(_store: Store, _view: ViewState) -> Component:
    """Return the page; the browser requests its content immediately and then every second."""
    return html.Div(
        [
            heading.page_title(TITLE, EXPLANATION),
            dcc.Interval(id=POLL, interval=POLL_MS),
            html.Div(id=JOB, className="live-job"),
        ],
        className="page",
    )


def register(app: Dash) -> None:
    """Look at the job every second while the page is open."""

    @app.callback(Output(JOB, "children"), Input(POLL, "n_intervals"), current.RUN)
    def draw_job(_times: Any, run_key: Any) -> list[Component]:
        """Draw the state of the running job anew, at each tick."""
        return _draw_run(current.run_key_of(run_key))


def _draw_run(run_key: str) -> list[Component]:
    """Look at the job of a run, and draw what is seen."""
    folder = current.runs_of_app().trace_folder_of(run_key)
    if folder is None or not folder.is_dir():
        return [dmc.Card(html.P(NOT_A_FOLDER), className="card prose")]
    return draw(current.runs_of_app().watched_jobs.look(folder))


def draw(view: JobView) -> list[Component]:
    """Draw where a job stands, its ranks, and the messages so far."""
    status = view.status
    if status is None or not status.ranks:
        return [dmc.Card(html.P(NOT_LIVE), className="card prose")]
    is_recording = any(not rank_status.is_over for rank_status in status.ranks)
    stall = view.stall if is_recording else None
    headline = describe_stalled_status(status, stall) if is_recording else NOT_LIVE
    culprits = () if stall is None else stall.culprits
    sections: list[Component] = [
        html.P(headline, className="summary prose alarm" if stall else "summary prose"),
        dmc.Card(_draw_ranks(status, culprits), className="card"),
    ]
    if view.timed_news:
        sections.append(dmc.Card(_draw_news(view.timed_news), className="card"))
    return sections


def _draw_ranks(status: JobStatus, culprits: Collection[int]) -> Component:
    """Draw a table with a row a rank, which scrolls where the window is narrow."""
    rows = [
        html.Tr(
            [html.Td(cell) for cell in describe_rank(rank_status, status.at_ns)],
            className="culprit" if rank_status.rank in culprits else "",
        )
        for rank_status in choose_ranks(status, culprits)
    ]
    head = html.Thead(html.Tr([html.Th(name) for name in COLUMNS]))
    table = html.Table([head, html.Tbody(rows)], className="live-ranks")
    label = aria("ranks of the job")
    return html.Div(table, className="live-scroll", tabIndex=0, role="region", **label)


def _draw_news(news: Iterable[tuple[float, News]]) -> Component:
    """Draw messages with their wall times, in seconds."""
    items = [
        html.Li(
            [
                html.Time(time.strftime("%H:%M:%S", time.localtime(noted_s))),
                html.Pre(message.sentence),
            ],
            className="alarm" if message.kind == "stalled" or message.is_alarm else "",
        )
        for noted_s, message in news
    ]
    return html.Ul(items, className="live-news")
