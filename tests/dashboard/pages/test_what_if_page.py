"""The page "What if": controls are edits, answers are the terminal's, and a step is drawn twice."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from dash import Dash
from plotly.utils import PlotlyJSONEncoder
from support.web.callbacks import call
from support.web.stores import LATE, SLOW_RANK, open_run, sharded, slow_rank, traced
from support.web.views import view_of

from tracelens.verdicts.whatif import whatif
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.figures import replayed_steps
from tracelens_dashboard.pages import what_if as page
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.theme import LIGHT
from tracelens_dashboard.view import links
from tracelens_dashboard.view.state import ViewState

FIXED = "fix:1"


@cache
def slow_rank_app() -> Dash:
    return create_app(slow_rank())


def as_json(component: Any) -> str:
    return json.dumps(component, cls=PlotlyJSONEncoder)


def answered(store: Store, *edits: str) -> str:
    """Return the page's text for some edits."""
    given = {f"{page.EDITS}.data": list(edits)}
    answer = call(create_app(store), f"{page.ANSWER}.children", given)
    assert answer.status_code == 200
    return json.dumps(answer.get_json(), ensure_ascii=False).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("values", "edits"),
    [
        ({}, []),
        ({"ranks": ["2", "3"]}, ["rank:2=median", "rank:3=median"]),
        (
            {"phase:data": 0, "phase:forward": 100, "phase:backprop": 25},
            ["phase:data=0", "phase:backprop*0.25"],
        ),
        ({"bandwidth": 1, "latency": 3}, ["bandwidth*2", "latency/8"]),
        ({"bandwidth": -2, "message_cost": -1}, ["bandwidth/4", "message_cost*2"]),
        ({"overlap": "off", "algorithm": page.AS_RECORDED, "async": None}, ["overlap=off"]),
        ({"more": "ranks=64;; buckets=4MiB ;ranks=64"}, ["ranks=64", "buckets=4MiB"]),
        ({"ranks": ["x", "-1"], "bandwidth": "2", "phase:data": "none", "more": 7}, []),
    ],
)
def test_controls_are_edits(values: dict[str, Any], edits: list[str]) -> None:
    """As the terminal knows them; what no control can say is ignored."""
    assert page.edits_of(values) == edits


def test_the_first_fault_is_asked_at_once() -> None:
    """Of a run with a straggler the page begins with the fix of that finding."""
    shown = as_json(page.layout(slow_rank(), ViewState()))
    assert FIXED in shown
    assert FIXED not in as_json(page.layout(slow_rank(), ViewState(replay_edits=("bandwidth*2",))))
    card = links.to_replay(slow_rank(), links.fix_of(slow_rank(), LATE))
    assert view_of(card).replay_edits == (FIXED,)


def test_an_answer_is_that_of_the_terminal() -> None:
    """The same saving and interval, how far to trust it, and the command."""
    (expected,) = whatif(traced(SLOW_RANK), FIXED).answers
    answer = answered(slow_rank(), FIXED)
    assert f"{100 * expected.saving:.1f} % shorter" in answer
    assert "Without edits the replay of 60 steps differs from the run by 0.0 %" in answer
    assert f"--what '{FIXED}'" in answer


def test_what_makes_steps_longer_is_said_so() -> None:
    (expected,) = whatif(traced(SLOW_RANK), "phase:forward*2").answers
    assert expected.saving < 0
    low, high = sorted(-edge for edge in expected.interval)
    assert page.describe_answer(expected).endswith(
        f"{-100 * expected.saving:.1f} % longer (95 % interval {100 * low:.1f} % to "
        f"{100 * high:.1f} %)."
    )


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("rank:99=median", "99"),
        ("nonsense", "no edit that is known"),
        ("arrangement=x", "not recorded"),
    ],
)
def test_what_cannot_be_answered_is_a_sentence(edit: str, reason: str) -> None:
    """In place of an answer, and of the drawing."""
    assert reason in answered(slow_rank(), edit)
    drawn = call(
        slow_rank_app(),
        f'{{"chart":"{page.BOTH.card_id}","part":"graph"}}.figure',
        {"scheme.computedColorScheme": "light", f"{page.EDITS}.data": [edit]},
    )
    assert drawn.status_code == 200
    assert reason in drawn.text


@pytest.mark.parametrize("junk", [None, 7, ["all"], {"a": 1}, [1, None], "x" * 10**5, ["<b>" * 50]])
def test_no_edits_that_are_posted_make_it_fail(junk: Any) -> None:
    app = slow_rank_app()
    posted = {
        f"{page.EDITS}.data": junk,
        f"{page.STEP}.value": junk,
        "scheme.computedColorScheme": "dark",
    }
    for output in (
        f"{page.ANSWER}.children",
        f'{{"chart":"{page.BOTH.card_id}","part":"graph"}}.figure',
    ):
        assert call(app, output, posted).status_code in {200, 400}


def test_a_step_is_drawn_before_and_after() -> None:
    """The slow rank works less below, the others wait less, and the step is over sooner."""
    recorded, replayed = slow_rank().replay.replay_step(30, FIXED)
    drawn = replayed_steps.steps((recorded, replayed), 30, [0, 1, 2, 3], LIGHT)
    assert [trace.yaxis for trace in drawn.figure.data] == ["y", "y", "y2", "y2"]
    over = [shape.x0 for shape in drawn.figure.layout.shapes]
    assert over == [recorded.end_ns.max(), replayed.end_ns.max()]
    assert over[1] < 0.9 * over[0]
    rows = {row["rank"]: row for row in drawn.rows}
    assert rows[2]["own work, with the edits"] < 0.9 * rows[2]["own work, as it was"]
    for rank in (0, 1, 3):
        assert rows[rank]["own work, with the edits"] == pytest.approx(
            rows[rank]["own work, as it was"]
        )
        waits = "waiting or communicating"
        assert rows[rank][f"{waits}, with the edits"] < rows[rank][f"{waits}, as it was"]


def test_the_step_that_is_drawn_is_the_one_asked_for_or_the_usual_one() -> None:
    """The usual one is that of the median saving."""
    app, output = slow_rank_app(), f'{{"chart":"{page.BOTH.card_id}","part":"summary"}}.children'
    graph = f'{{"chart":"{page.BOTH.card_id}","part":"graph"}}.figure'
    assert output
    posted = {"scheme.computedColorScheme": "light", f"{page.EDITS}.data": [FIXED]}
    of_step_25 = call(app, graph, posted | {f"{page.STEP}.value": 25}).text
    assert "Step 25 on 4 ranks" in of_step_25
    saved = slow_rank().replay.measure_savings_ns(FIXED)
    assert (saved[20:40] > 0).all()
    of_median_step = call(app, graph, posted).text
    assert "Step 25 on" not in of_median_step


def test_every_edit_is_a_bar_that_leads_to_it() -> None:
    """The largest saving is on top; the sentence names the rank that was slowed down."""
    store = slow_rank()
    answers = store.replay.answer("all")
    drawn = replayed_steps.savings(answers, LIGHT)
    bars = drawn.figure.data[0]
    assert list(bars.x) == sorted(bars.x, reverse=True)
    bar_data = next(one for one in bars.customdata if one[0] == "rank:2=median")
    assert "Most would be saved by rank:2=median" in drawn.summary
    assert len(drawn.rows) == len(answers.answers)
    led = page._link_to_edit(store, {"customdata": bar_data})
    assert led
    assert view_of(led).replay_edits == ("rank:2=median",)
    assert page._link_to_edit(store, {"customdata": 7}) is None


def test_servers_have_controls_of_their_own() -> None:
    assert '"message_cost"' in as_json(page.layout(sharded(), ViewState()))
    assert '"message_cost"' not in as_json(page.layout(slow_rank(), ViewState()))


def test_a_large_run_is_sent_to_the_terminal() -> None:
    """A page does not replay what takes minutes; all edits are tried only when asked for."""
    store = open_run(SLOW_RANK, LATE)
    summary = replace(store.report.summary, spans=page.MOST_SPANS + 1)
    run = replace(store.run, report=replace(store.report, summary=summary))
    large = Store(run, traced(SLOW_RANK))
    shown = as_json(page.layout(large, ViewState()))
    assert "tracelens whatif" in shown
    assert page.EDITS not in shown
    graph = f'{{"chart":"{page.EVERY.card_id}","part":"graph"}}.figure'
    drawn = call(create_app(large), graph, {"scheme.computedColorScheme": "light"})
    assert "Press" in drawn.text


def test_ranks_that_edits_name_are_drawn() -> None:
    """Among more ranks than there are rows: rank 17, not rank 1 for its first digit."""
    (answer,) = whatif(traced(SLOW_RANK), FIXED).answers
    ranks = range(2 * replayed_steps.MOST_ROWS)
    many = replace(answer, waits={rank: (float(rank == 1), 0.0) for rank in ranks})
    assert 17 in page._select_ranks(many, ["rank:17,phase:data=0"])
    still = replace(answer, waits=dict.fromkeys(ranks, (0.0, 0.0)))
    assert page._select_ranks(still, ["rank:17=median"])[:2] == [0, 1]
    assert 17 in page._select_ranks(still, ["rank:17=median"])
