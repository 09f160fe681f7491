"""Every page opens for every kind of run, and says what it cannot show."""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from dash import Dash
from plotly.utils import PlotlyJSONEncoder
from support.web.callbacks import call
from support.web.stores import LATE, SLOW_RANK, alone, report_of, sharded, slow_rank
from werkzeug.test import TestResponse

from tracelens.load import prepare
from tracelens.simulator.synthetic import generate
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components.table import READ
from tracelens_dashboard.pages import PAGES, Page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view.state import ViewState

EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
LIGHT = {"scheme.computedColorScheme": "light"}
GRID = '{{"chart":"{}","part":"grid"}}.children'
HOSTILE = "<img src=x onerror=alert(1)>"

NUMBER = re.compile(r"[+-]?[\d.,]+(?: (?:%|[nµm]?s|[KMGT]?i?B|[kMG]?B/s))?")


def without_steps() -> Store:
    """Open a run that recorded no step."""
    raw = generate(SLOW_RANK)
    trace = prepare(raw.with_(events=raw.events.filter(pl.col("kind") != "step")))
    empty = report_of(trace.with_(steps=trace.steps.clear()))
    return Store.from_trace(trace.with_(steps=trace.steps.clear()), replace(empty, efficiency=None))


RUNS: dict[str, Callable[[], Store]] = {
    "slow rank": slow_rank,
    "parameter servers": sharded,
    "one rank": alone,
    "no steps": without_steps,
}
EVERY_RUN = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
# All charts of one run: that with parameter servers has most of them.
ALL_CHARTS_OF_A_RUN = pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=name, marks=() if name == "parameter servers" else pytest.mark.slow)
        for name, run in RUNS.items()
    ],
)


def as_json(component: Any) -> str:
    """Write a component as it is sent to the browser."""
    return json.dumps(component, cls=PlotlyJSONEncoder)


@EVERY_PAGE
@EVERY_RUN
def test_every_page_opens_for_every_run(page: Page, run: Callable[[], Store]) -> None:
    """The layout is built and serialised for every run and every address."""
    asked = ViewState(
        start_ns=5, end_ns=10**17, pinned_ranks=(2, 999), marked_steps=(1, 10**6), shard=77
    )
    for view in (ViewState(), asked):
        assert as_json(page.layout(run(), view))


@ALL_CHARTS_OF_A_RUN
def test_every_chart_can_be_drawn(run: Callable[[], Store]) -> None:
    """Each callback that draws a figure answers with one."""
    answers = draw_with_tables(run)
    assert len(answers) >= 5
    for output, answer in answers.items():
        if run().shard_count or "shard-" not in output:
            assert answer.status_code == 200, output
            assert "figure" in answer.text


@pytest.mark.slow
@EVERY_RUN
def test_every_chart_can_be_drawn_without_a_table(run: Callable[[], Store]) -> None:
    """In both color schemes."""
    app = create_app(run())
    store = run()
    charts = {c for c in drawing_callbacks(app) if store.shard_count or "shard-" not in c}
    assert len(charts) >= 5
    for output in charts:
        for scheme in ("light", "dark"):
            answer = call(app, output, {"scheme.computedColorScheme": scheme})
            assert answer.status_code == 200, output
            assert "figure" in answer.text


@functools.cache
def draw_with_tables(run: Callable[[], Store]) -> dict[str, TestResponse]:
    """Return the answers of all callbacks that draw a figure, whose table is shown, by output."""
    app = create_app(run())
    answers = {}
    for output in drawing_callbacks(app):
        part = output.removesuffix(".figure").replace('"part":"graph"', '"part":"switch"')
        answers[output] = call(app, output, LIGHT | {f"{part}.checked": True})
    return answers


def test_a_table_is_made_when_it_is_asked_for() -> None:
    """A chart comes without its table, which would be made for nothing; the switch brings it."""
    app = create_app(slow_rank())
    switch = '{"chart":"waterfall","part":"switch"}.checked'
    output = '{"chart":"waterfall","part":"graph"}.figure'
    table = next(name for name in outputs(app) if name.startswith(GRID.format("waterfall") + "@"))
    for checked in (False, True):
        asked = LIGHT | {switch: checked}
        assert ("rowData" in call(app, output, asked).text) == checked
        assert ("rowData" in call(app, table, asked).text) == checked


@ALL_CHARTS_OF_A_RUN
def test_no_table_holds_a_number_as_text(run: Callable[[], Store]) -> None:
    """It would sort as a word: 135 µs before 48.4 µs."""
    for output, answer in draw_with_tables(run).items():
        for row in rows_of(answer.get_json()):
            texts = {n: v for n, v in row.items() if isinstance(v, str) and not n.endswith(READ)}
            assert {n: v for n, v in texts.items() if NUMBER.fullmatch(v)} == {}, output


def rows_of(answer: Any) -> list[dict[str, Any]]:
    """Find the rows of all tables in an answer."""
    if isinstance(answer, dict):
        own = answer.get("rowData", [])
        return [*own, *(row for value in answer.values() for row in rows_of(value))]
    return [row for one in answer for row in rows_of(one)] if isinstance(answer, list) else []


def drawing_callbacks(app: Dash) -> set[str]:
    """List the first outputs of all callbacks that draw a figure anew."""
    return {first for first in outputs(app) if first.endswith(".figure")}


def outputs(app: Dash) -> set[str]:
    """List the first outputs of all callbacks."""
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    return {entry["output"].removeprefix("..").split("...")[0] for entry in listed}


def test_a_run_without_parameter_servers_is_told_so() -> None:
    """The page explains itself in words instead of empty charts."""
    shards = next(page for page in PAGES if page.TITLE == "PS shards")
    page = as_json(shards.layout(slow_rank(), ViewState()))
    assert "This run has no parameter servers" in page


def test_the_first_card_leads_to_the_timeline() -> None:
    """The overview names the rank and links to it, pinned."""
    overview = PAGES[0]
    page = as_json(overview.layout(slow_rank(), ViewState()))
    assert "Straggler: rank 2, backprop, steps 20\\u201339" in page
    assert "pin=2&steps=20-39" in page


def test_hostile_names_stay_text() -> None:
    """Markup in a host, a span or a sentence is never sent as HTML to be read."""
    trace = prepare(generate(SLOW_RANK))
    named = trace.processes.with_columns(host=pl.lit(HOSTILE))
    finding = replace(LATE, sentence=HOSTILE, hosts=(HOSTILE,), kind="slow_host")
    trace = trace.with_(processes=named)
    app = create_app(Store.from_trace(trace, report_of(trace, finding)))
    for output in drawing_callbacks(app):
        if "shard-" not in output:
            assert HOSTILE not in call(app, output, LIGHT).text


def test_following_a_zoom_sends_what_changes() -> None:
    """A zoom answers with image, spans and ticks only, not with the whole figure."""
    app = create_app(slow_rank())
    view = {"t0": 10**8, "t1": 2 * 10**8}
    shown = LIGHT | {"timeline-view.data": view, "timeline-wide.data": 1200}
    answer = call(app, "timeline-change.data", shown).get_json()
    change = answer["response"]["timeline-change"]["data"]
    assert {*change} == {"data", "layout", "step_axis"}
    assert {*change["layout"]} == {"images", "shapes", "annotations"}
    assert {*change["step_axis"]} == {"tickvals", "ticktext"}


def test_two_runs_in_one_process_do_not_mix() -> None:
    """Each application serves its own run."""
    first, second = create_app(slow_rank()), create_app(sharded())
    layouts = [app.server.test_client().get("/_dash-layout").json for app in (first, second)]
    chips = [json.dumps(layout, ensure_ascii=False) for layout in layouts]
    assert "4 ranks · 60 steps" in chips[0]
    assert "3 shards" in chips[1]
