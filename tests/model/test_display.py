"""Traces, reports, findings and results: one line as text, HTML in notebooks, frames of pandas."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from support.runs.analysed import RUNS, report, trace

import tracelens as tl
from tracelens.analyses import ANALYSES
from tracelens.errors import InvalidArgument, MissingExtra
from tracelens.lod import timeline_page
from tracelens.lod.lanes import CODES
from tracelens.model import display

SLOW = RUNS["slow rank"][0]
VOID = {"meta", "img"}


class Balance(HTMLParser):
    """Notes what is opened and closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_part(text: str) -> list[str]:
    """Everything that is opened is closed, and no script and no address of elsewhere is in it."""
    balance = Balance(text)
    assert balance.open == []
    assert not {"script", "iframe", "link"} & set(balance.seen)
    assert "http" not in text
    return balance.seen


@pytest.mark.parametrize("run", RUNS)
def test_repr_is_one_line(run: str) -> None:
    """Whatever the run: no table is printed by `repr`."""
    scenario = RUNS[run][0]
    values = [trace(scenario), report(scenario), *report(scenario).findings]
    for value in [*values, *report(scenario).results.values()]:
        text = repr(value)
        assert "\n" not in text
        assert text.startswith(type(value).__name__ + "(")


def test_lines_say_what_there_is() -> None:
    slow_report = report(SLOW)
    assert repr(trace(SLOW)).startswith("Trace(in memory: 4 ranks, 80 steps, ")
    assert repr(slow_report) == (
        f"Report(fault: {slow_report.verdict.headline!r}, 4 ranks, 80 steps, "
        f"{len(slow_report.findings)} finding{'s' * (len(slow_report.findings) != 1)})"
    )
    assert repr(slow_report.findings[0]).startswith(
        "Finding(straggler, fault: 'Rank 2 is a straggler"
    )
    assert repr(slow_report.results["stragglers"]) == "Stragglers(1 finding)"
    assert "by_step: 80 rows" in repr(slow_report.results["interleaving"])


@pytest.mark.parametrize("run", RUNS)
def test_notebooks_show_every_kind_of_run(run: str) -> None:
    """Pages are whole HTML; a page of a report has every finding."""
    scenario = RUNS[run][0]
    check_part(trace(scenario)._repr_html_())
    page = report(scenario)._repr_html_()
    check_part(page)
    for finding in report(scenario).findings:
        assert finding.sentence.split(":")[0] in page
        check_part(finding._repr_html_())


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: analysis.name)
def test_notebooks_show_every_result(analysis: object) -> None:
    """With the first rows of its tables."""
    for run in ("slow rank", "hot shard", "alone"):
        result = report(RUNS[run][0]).results[analysis.name]  # type: ignore[attr-defined]  # an Analysis
        tags = check_part(result._repr_html_())  # type: ignore[attr-defined]  # of `DisplayMixin`
        filled = [frame for frame in display.find_frames(result).values() if frame.height]
        assert tags.count("table") == len(filled)


def test_names_of_a_trace_do_not_act() -> None:
    slow_report = report(SLOW)
    markup = "<img src=x onerror=alert(1)>"
    finding = replace(slow_report.findings[0], sentence=markup)
    page = replace(slow_report, findings=(finding,))._repr_html_()
    assert markup not in page
    assert "&lt;img src=x" in page


def test_the_picture_shows_the_slow_rank() -> None:
    """As many rows of pixels as the plan has; rank 2, whose forward is slow, has most of forward."""
    page = trace(SLOW)._repr_html_()
    data = re.search(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)
    assert data
    assert base64.b64decode(data[1]).startswith(b"\x89PNG")
    for rank in range(4):
        assert f">rank {rank}<" in page
    lanes = timeline_page._make_lanes(trace(SLOW))
    code = CODES["forward"]
    compute_ns = [
        int(
            np.sum((lanes.ends_ns[part] - lanes.starts_ns[part])[lanes.palette_codes[part] == code])
        )
        for part in (slice(*lanes.item_offsets[i : i + 2]) for i in range(4))
    ]
    assert compute_ns.index(max(compute_ns)) == 2
    for word in ("forward", "backprop", "wait for other ranks"):
        assert word in page


def test_a_large_run_has_words_only() -> None:
    page = timeline_page.render(trace(SLOW), max_events=10)
    assert "img" not in check_part(page)
    assert "Too many events" in page


def test_tables_become_frames_of_pandas() -> None:
    """Of a trace, of a report, of a result; with the same rows."""
    pandas = pytest.importorskip("pandas")
    run, slow_report = trace(SLOW), report(SLOW)
    steps = run.to_pandas("steps")
    assert isinstance(steps, pandas.DataFrame)
    assert len(steps) == run.steps.height
    assert len(run.to_pandas()) == run.events.collect().height
    assert list(slow_report.to_pandas()["kind"]) == [
        finding.kind for finding in slow_report.findings
    ]
    assert len(slow_report.to_pandas("bandwidths")) == slow_report.tables["bandwidths"].height
    by_step = slow_report.results["interleaving"].to_pandas("by_step")  # type: ignore[attr-defined]  # of `DisplayMixin`
    assert len(by_step) == 80


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(InvalidArgument, match="a trace has no table 'stepz': there are events,"):
        trace(SLOW).to_pandas("stepz")


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match="'notebook'"):
        trace(SLOW).to_pandas("steps")


def test_the_front_door_returns_such_values() -> None:
    assert tl.Trace.__repr__ is not object.__repr__
    assert callable(tl.Report._repr_html_)
