"""The list of runs tells at a glance which one to open, and finds and orders them."""

import json
from pathlib import Path
from typing import Any

import pytest
from dash import Dash
from plotly.utils import PlotlyJSONEncoder
from support.runs.indexes import explained, recorded
from support.web.callbacks import URL, body_of, call
from support.web.stores import alone, slow_rank

from tracelens.lod import opening
from tracelens.lod.run_data import Glance
from tracelens.reports.to_html import verdict_section
from tracelens.simulator.synthetic import Fault, Scenario
from tracelens_dashboard.app import run_list
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.pages import overview
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.store import Store
from tracelens_dashboard.view.state import ViewState

LATE = Fault("data", (1,), steps=(20, 39), extra_ms=9)
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run, one with a late rank, and one that was not read yet."""
    runs_folder = tmp_path_factory.mktemp("runs")
    for name, scenario in {
        "healthy": Scenario(ranks=3, steps=12),
        "late": Scenario(ranks=4, steps=60, faults=(LATE,)),
        HOSTILE.replace("/", ""): Scenario(ranks=2, steps=5),
    }.items():
        (runs_folder / name).mkdir()
        recorded(runs_folder / name, scenario)
    for name in ("healthy", "late"):
        explained(runs_folder / name)
    return runs_folder


@pytest.fixture
def app(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dash:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return create_app(Runs([folder]))


def listed_names(app: Dash, search: str = "", sort: str = "by name") -> list[str]:
    """List the names in the order in which the page lists them."""
    values = {"run-search.value": search, "run-sort.value": sort}
    answer = call(app, "run-list.children", values).get_json()
    return links(answer["response"]["run-list"]["children"])


def table(app: Dash, **values: Any) -> list[Any]:
    """Return the table's bodies, a group each."""
    given = {f"run-{name}.value": value for name, value in values.items()}
    answer = call(app, "run-list.children", {"run-sort.value": "by name"} | given).get_json()
    parts: list[Any] = answer["response"]["run-list"]["children"]["props"]["children"]
    return parts[1:]


def titles(bodies: list[Any]) -> list[str]:
    """Return the titles of groups."""
    return [
        group["props"]["children"][0]["props"]["children"]["props"]["children"][0]
        for group in bodies
    ]


def links(component: Any) -> list[str]:
    if isinstance(component, list):
        return [name for part in component for name in links(part)]
    if not isinstance(component, dict):
        return []
    props = component["props"]
    own = [props["children"]] if component["type"] == "Link" else []
    return own + links(props.get("children"))


def test_the_index_keeps_a_run_at_a_glance(folder: Path) -> None:
    """Sizes, efficiency, verdict and pace are told without opening the run."""
    glance = opening.read_glance(folder / "late")
    run = opening.open_indexed(folder / "late")
    assert run
    assert glance == Glance.from_run(run)
    assert (glance.ranks, glance.steps, glance.shards) == (4, 60, 0)
    assert glance.faults >= 1
    assert "ank 1" in glance.verdict
    late = glance.pace_ns[25] / glance.pace_ns[50]
    assert 1.3 < late < 2
    assert opening.read_glance(folder) is None


def test_a_healthy_run_says_so(folder: Path) -> None:
    """No fault is a verdict, too."""
    seen = opening.read_glance(folder / "healthy")
    assert seen
    assert seen.verdict.startswith("HEALTHY: ")


def test_a_verdict_has_the_colour_of_what_it_names(app: Dash, folder: Path) -> None:
    """The list gives each verdict that was reached its colour, the overview the same one."""
    page = call(app, "run-list.children", {"run-sort.value": "by name"}).text
    assert page.count("lead lead-healthy") == page.count("lead lead-fault") == 1
    for name, lead in {"healthy": "healthy", "late": "fault"}.items():
        store = Store.from_index(folder / name)
        assert store
        layout = json.dumps(overview.layout(store, ViewState()), cls=PlotlyJSONEncoder)
        assert f"verdict lead lead-{lead}" in layout
        assert f'class="lead lead-{lead}"' in verdict_section(store.report)


def test_runs_are_found_by_name_and_by_verdict(app: Dash) -> None:
    """The search ignores case and looks in both."""
    assert listed_names(app, "HEALTH") == ["healthy"]
    assert listed_names(app, "straggler rank 1") == ["late"]
    assert listed_names(app, "nothing is called so") == []


def test_runs_are_put_in_order(app: Dash) -> None:
    """Of what is not known yet, as of a run that was not read, the order ends."""
    names = listed_names(app)
    assert names == sorted(names, key=str.casefold)
    assert listed_names(app, sort="lowest efficiency first")[:2] == ["late", "healthy"]
    assert listed_names(app, sort="most ranks first")[:2] == ["late", "healthy"]
    assert set(listed_names(app, sort="no order")) == set(names)


def test_runs_are_grouped(app: Dash, folder: Path) -> None:
    """By verdict, the worst on top; by folder; by the tags that they have. Each is in one group."""
    bodies = table(app, group="by verdict")
    assert titles(bodies) == ["Fault", "Healthy", "Not analyzed yet"]
    assert [links(body) for body in bodies[:2]] == [["late"], ["healthy"]]
    assert titles(table(app, group="by folder")) == [folder.name]
    current = app.server.config["tracelens.runs"]
    current.tags.add([folder / "late"], "b")
    current.tags.add([folder / "late", folder / "healthy"], "a")
    bodies = table(app, group="by tags")
    assert titles(bodies) == ["a", "a, b", "No tag"]
    assert [links(body) for body in bodies[:2]] == [["healthy"], ["late"]]
    assert len(table(app, group="no such group")) == 1


def test_runs_are_found_by_tags(app: Dash, folder: Path) -> None:
    """Of several tags a run must have all; they are searched for, too."""
    current = app.server.config["tracelens.runs"]
    current.tags.add([folder / "late"], "slow disk")
    current.tags.add([folder / "late", folder / "healthy"], "a")
    assert listed_names(app, "slow disk") == ["late"]
    values = {"run-sort.value": "by name", "run-tagged.value": ["a"]}
    assert call(app, "run-list.children", values).text.count("run-row") == 2
    values["run-tagged.value"] = ["a", "slow disk"]
    assert call(app, "run-list.children", values).text.count("run-row") == 1


def test_runs_get_tags_and_lose_them(app: Dash) -> None:
    """All that are chosen get one; the button of a tag takes it off its run."""
    current = app.server.config["tracelens.runs"]
    late = next(entry for entry in current.list_entries() if entry.name == "late")
    listed = app.server.test_client().get("/_dash-dependencies").get_json()
    add = body_of(
        listed,
        "run-tags-changed.data",
        {"run-new-tag.value": " slow  disk ", "run-choice.data": [late.run_key]},
    )
    assert app.server.test_client().post(URL, json=add).status_code == 200
    assert current.tags.tags_of(late.path) == ("slow disk",)
    first = next(e["output"] for e in listed if e["output"].startswith("run-tags-changed.data@"))
    untag_button = {"type": "run-untag", "run": late.run_key, "tag": "slow disk"}
    remove = body_of(listed, first, {})
    remove["inputs"] = [[{"id": untag_button, "property": "n_clicks", "value": 1}]]
    remove["changedPropIds"] = [
        json.dumps(untag_button, sort_keys=True, separators=(",", ":")) + ".n_clicks"
    ]
    assert app.server.test_client().post(URL, json=remove).status_code == 200
    assert current.tags.tags_of(late.path) == ()


def test_how_many_are_analyzed_is_said(app: Dash) -> None:
    """Of all; and nothing is drawn anew that is as it was."""
    answer = call(app, "run-list.children", {}).get_json()["response"]
    assert "Analyzed 2 of 3 runs, paused" in json.dumps(answer["run-progress"])
    again = call(app, "run-list.children", {"run-shown.data": answer["run-shown"]["data"]})
    assert again.status_code == 204


def test_names_of_folders_cannot_act(app: Dash) -> None:
    """A name with markup is a text like any other; it says that it was not read."""
    assert HOSTILE.replace("/", "") in listed_names(app)
    page = call(app, "run-list.children", {"run-sort.value": "by name"}).text
    assert "not read yet" in page
    assert "dangerously" not in page


def test_one_run_has_no_list_in_the_way() -> None:
    """Served alone a run begins with its overview; the list says how to see more."""
    page = json.dumps(run_list.layout(Runs.from_store(alone()), ViewState()), cls=PlotlyJSONEncoder)
    assert "tracelens serve DIR DIR" in page
    assert slow_rank().run_key is None
