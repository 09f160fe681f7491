"""The text for a terminal: findings first, readable at any width, with and without colour."""

import re

import pytest
from support.runs.analysed import RUNS, report
from support.tiers import mark_slow

from tracelens.reports import to_text

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SLOW, HEALTHY = RUNS["slow rank"][0], RUNS["healthy"][0]


def test_the_verdict_comes_first() -> None:
    """The verdict in four lines, the finding and its price, then where the time went."""
    lines = to_text.render(report(SLOW), width=100).splitlines()
    assert lines[0] == "Verdict  STRAGGLER rank 2, forward \N{MIDDLE DOT} moderate"
    names = [line.split("  ")[0] for line in lines if line and line[0].isalpha()]
    assert names[:5] == ["Verdict", "Why", "Next", "Scope", "Time"]
    first = next(
        line_index for line_index, line in enumerate(lines) if line.startswith("1. Straggler: 5.")
    )
    assert lines[first].endswith("%)")
    assert lines[first + 1].startswith(
        "   Rank 2 is a straggler in forward, steps 20\N{EN DASH}49: +3.01 ms per step (16 % of"
    )
    assert "Where the time went (share of ranks x job time of 1.54 s)" in lines
    bars = [line for line in lines if "█" in line]
    assert [line.split("  ")[1] for line in bars] == [
        "useful computation",
        "data loading",
        "wait for other ranks",
        "exposed communication",
    ]
    assert any(line.startswith("Efficiency is POP parallel efficiency") for line in lines)
    assert lines[-1] == "Clocks: all processes share one."


def test_a_healthy_run_is_told_so() -> None:
    first = to_text.render(report(HEALTHY), width=100).splitlines()[0]
    assert first == "Verdict  HEALTHY: 88 % of the time is useful"


@pytest.mark.parametrize("run", RUNS)
def test_a_brief_report_fits_a_screen(run: str) -> None:
    """Without its tables it has at most 30 lines of 80 columns, the verdict among them."""
    lines = to_text.render(report(RUNS[run][0]), width=80, length="brief").splitlines()
    assert len(lines) <= to_text.MOST_LINES
    assert max(map(len, lines)) <= 80
    verdict = to_text.render(report(RUNS[run][0]), width=80, length="verdict").splitlines()
    assert lines[: len(verdict)] == verdict


@pytest.mark.parametrize("width", mark_slow([40, 60, 80, 200], quick=[40, 80]))
@pytest.mark.parametrize("run", RUNS)
def test_lines_fit_the_terminal(width: int, run: str) -> None:
    text = to_text.render(report(RUNS[run][0]), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_colour_adds_nothing_but_colour() -> None:
    """Without its colours the text is the plain one."""
    coloured = to_text.render(report(SLOW), width=90, color=True)
    assert ANSI.search(coloured)
    assert ANSI.sub("", coloured).split() == to_text.render(report(SLOW), width=90).split()
