"""What holds for every format, on every kind of run."""

import re
import unicodedata
from dataclasses import replace

import pytest
from support.runs.analysed import RUNS, report

from tracelens.reports import REPORTS, report_format

formats = pytest.mark.parametrize("name", REPORTS)
HOSTILE = "\x1b[2J\x07\u202egnp.exe\x00 <img src=x onerror=alert(1)>"


@formats
@pytest.mark.parametrize("run", RUNS)
def test_every_run_is_rendered_with_its_findings(name: str, run: str) -> None:
    """Every kind of run is rendered with all its findings."""
    found = report(RUNS[run][0])
    text = " ".join(report_format(name).render(found).split())
    for finding in found.findings:
        opening = " ".join(finding.sentence.split()[:4])
        assert opening in text


@formats
def test_names_of_a_trace_do_nothing(name: str) -> None:
    """Escape sequences, bells, direction marks and NULs in recorded names are shown, not sent."""
    found = report(RUNS["slow rank"][0])
    first = replace(found.findings[0], sentence=f"Function {HOSTILE} is slow.", function=HOSTILE)
    text = report_format(name).render(replace(found, findings=(first,)))
    acting = {c for c in text if unicodedata.category(c) in {"Cc", "Cf"}} - {"\n"}
    assert acting == set()
    assert "gnp.exe" in text


@formats
def test_the_same_report_is_the_same_text(name: str) -> None:
    """Rendering changes nothing and depends on nothing else."""
    found = report(RUNS["slow rank"][0])
    first, second = (_without_time(report_format(name).render(found)) for _ in range(2))
    assert first == second


def _without_time(text: str) -> str:
    """Leave out when metrics were written, which OpenTelemetry asks for."""
    return re.sub(r'"timeUnixNano": "\d+"', "", text)


@formats
def test_what_was_not_judged_is_said(name: str) -> None:
    """One rank has no stragglers, and every format says why."""
    text = " ".join(report_format(name).render(report(RUNS["alone"][0])).split())
    assert "straggler tests compare ranks" in text
