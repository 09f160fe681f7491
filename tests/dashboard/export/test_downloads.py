"""Downloads name a run as pages do, tell their size first, and are for our own pages only."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from support.web.callbacks import call
from support.web.stores import LATE, SLOW_RANK, report_of, slow_rank, traced

from tracelens.exports import perfetto
from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.export import downloads
from tracelens_dashboard.runs.catalog import Runs
from tracelens_dashboard.runs.store import Store

PERFETTO = "/export/perfetto"
WINDOW = "t0=100000000&t1=200000000"


@pytest.fixture(scope="module")
def browser() -> FlaskClient:
    client: FlaskClient = create_app(slow_rank()).server.test_client()
    return client


def spans(text: str) -> list[dict[str, Any]]:
    """Return the spans of a Perfetto file."""
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] != "M"]


def dialog_text(search: str) -> str:
    """Return the text of the dialog for an address."""
    app = create_app(slow_rank())
    return call(app, "export-offer.children", {"export-address.data": {"search": search}}).text


def test_a_report_comes_as_a_file(browser: FlaskClient) -> None:
    """It is kept, not shown: its name is the run's."""
    answer = browser.get("/export/report")
    assert answer.status_code == 200
    assert answer.mimetype == "text/html"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="run.report.html"'
    assert LATE.sentence in answer.text


def test_a_selection_is_what_the_view_shows(browser: FlaskClient) -> None:
    """Pinned ranks only, in the window only; without pins all ranks."""
    selected_spans = spans(browser.get(f"{PERFETTO}?{WINDOW}&pin=2,999").text)
    assert {event["pid"] for event in selected_spans} == {3}
    origin = slow_rank().run_window.start_ns
    assert origin >= 0
    for event in selected_spans:
        assert event["ts"] <= 200_000
        assert event["ts"] + event["dur"] >= 100_000
    all_spans = spans(browser.get(f"{PERFETTO}?{WINDOW}").text)
    assert {event["pid"] for event in all_spans} == {1, 2, 3, 4}
    assert len(all_spans) > len(selected_spans)


def test_the_size_is_told_first(browser: FlaskClient) -> None:
    """The dialog names exactly as many events as the file then holds, and links to it."""
    size_line = re.search(
        r"Rank 2, 100 ms: ([\d,]+) events, about [\d.]+ KiB", dialog_text(f"?{WINDOW}&pin=2")
    )
    assert size_line
    held = spans(browser.get(f"{PERFETTO}?{WINDOW}&pin=2").text)
    assert len(held) == int(size_line[1].replace(",", ""))


def test_too_much_is_refused_with_a_way_out(
    browser: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events, or more files, than one wants to wait for: a sentence instead of a link."""
    monkeypatch.setattr(perfetto, "MOST_EVENTS", 10)
    answer = browser.get(PERFETTO)
    assert answer.status_code == 400
    assert "zoom in" in answer.text
    assert "zoom in" in dialog_text("")
    monkeypatch.setattr(downloads, "MOST_RANKS", 3)
    assert "pin the ranks" in browser.get(PERFETTO).text
    assert PERFETTO not in dialog_text("")


def test_nonsense_is_the_whole_run(browser: FlaskClient) -> None:
    """Values that make no sense are ignored, as on pages; none of them is a path."""
    whole = browser.get(PERFETTO).text
    for query in ("t0=x&t1=-5", "pin=../../etc/passwd", "t0=9&t1=3", "steps=9-1&pin=77"):
        assert browser.get(f"{PERFETTO}?{query}").text == whole


def test_runs_that_are_not_served_are_not_found() -> None:
    """What is no id, or of no run here, gives nothing of any file."""
    client = create_app(Runs()).server.test_client()
    for run in ("", "0123456789ab", "../secrets", "/etc"):
        answer = client.get("/export/report", query_string={"run": run})
        assert answer.status_code == 404
        assert "not served" in answer.text


@pytest.mark.parametrize("path", ["/export/report", f"{PERFETTO}?{WINDOW}"])
def test_other_pages_start_no_download(browser: FlaskClient, path: str) -> None:
    """A page of elsewhere cannot make this server work; ours, and the address bar, can."""
    for site, status in (
        ("cross-site", 403),
        ("same-site", 403),
        ("none", 200),
        ("same-origin", 200),
    ):
        assert browser.get(path, headers={"Sec-Fetch-Site": site}).status_code == status


def test_a_hostile_name_is_a_plain_file_name() -> None:
    """Whatever a run is called, the file's name cannot lead elsewhere or end the header."""
    trace = traced(SLOW_RANK)
    store = Store.from_trace(trace, report_of(trace))
    named = replace(store.run, name='../../x"; filename="evil.exe\r\nSet-Cookie: a=b')
    answer = create_app(Store(named, trace)).server.test_client().get(f"{PERFETTO}?{WINDOW}")
    name = re.fullmatch(
        r'attachment; filename="([A-Za-z0-9._-]+)"', answer.headers["Content-Disposition"]
    )
    assert name
    assert name[1].endswith(".perfetto.json")
    assert not name[1].startswith(".")
    assert "Set-Cookie" not in answer.headers
