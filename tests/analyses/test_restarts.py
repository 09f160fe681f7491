"""A job that was started again tells why its attempts failed, and is judged by its last attempt."""

import pytest
from support.runs.lives import S, write_restarted
from support.runs.traces import call, span, trace_of

from tracelens.accounting.life.failed_attempts import find_failed_step
from tracelens.align.steps import divide_into_steps
from tracelens.reports.to_text import render
from tracelens.verdicts.report import analyze


def test_restarts_name_the_failure_of_each_attempt() -> None:
    report = analyze(
        write_restarted(
            ("RuntimeError", "cosmic ray"), ("ValueError", "bad"), None, worlds=(3, 3, 2)
        )
    )
    (finding,) = (one for one in report.findings if one.kind == "restarts")
    first = "rank 2 failed first in step 10: RuntimeError (cosmic ray) at <module> (train.py:9)"
    second = "rank 2 failed first in step 20: ValueError (bad) at <module> (train.py:9)"
    assert f"; in attempt 1 {first}." in finding.sentence
    assert finding.sentence.endswith(f" In attempt 2 {second}.")
    assert finding.evidence["failures"] == {"1": first, "2": second}
    assert report.life is not None
    assert report.life.failure == second
    assert report.life.worlds == (3, 3, 2)
    assert "world_change" not in {one.kind for one in report.findings}


def test_exception_of_all_ranks_is_one_crash_without_victims() -> None:
    report = analyze(write_restarted(("ValueError", "all"), worlds=(3,)))
    crash = report.findings[0]
    assert (crash.kind, crash.ranks) == ("crash", (0, 1, 2))
    assert crash.sentence == (
        "All 3 ranks failed alike in step 10: ValueError (all) at <module> (train.py:9)."
    )
    assert "no single rank is the cause" in report.verdict.action


def test_first_failure_of_one_rank_has_its_victims() -> None:
    report = analyze(write_restarted(("ValueError", "bad"), worlds=(3,)))
    crash = report.findings[0]
    assert crash.ranks == (2,)
    assert crash.sentence.startswith("Rank 2 failed first in step 10")
    assert "ranks 1 and 0 ended after it" in crash.sentence


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [span(0, "step", S, 2 * S, step=98), span(0, "step", 2 * S, 3 * S, step=99)],
            " after step 99",
        ),
        (
            [span(0, "step", S, 2 * S, step=99), span(0, "step", 2 * S, None, step=100)],
            " in step 100",
        ),
        (
            [
                span(0, "step", S, 2 * S, step=99),
                span(0, "step", 2 * S, 3 * S, step=100, status="exception"),
            ],
            " in step 100",
        ),
        (  # the loader failed: the step that it began for was dropped
            [
                span(0, "step", S, 2 * S, step=99),
                span(0, "data", 2 * S, 3 * S, step=100, status="exception"),
            ],
            " in step 100",
        ),
        ([span(0, "reduction", S, 2 * S)], ""),
    ],
    ids=["between steps", "open", "exception", "loader", "no steps"],
)
def test_step_of_a_failure_is_the_one_that_the_program_counts(
    rows: list[dict[str, object]], text: str
) -> None:
    assert find_failed_step(trace_of(rows), 0).text == text


def test_steps_that_are_counted_by_calls_are_not_named() -> None:
    rows = [
        call(rank, number, (number + 1) * S, (number + 1) * S + S // 2, thread=0)
        for number in range(30)
        for rank in (0, 1)
    ]
    trace = divide_into_steps(trace_of(rows, 2))
    assert find_failed_step(trace, 0) == (
        None,
        " after 30 calls in 'world', the last one allreduce",
    )


def test_message_with_brackets_is_no_markup() -> None:
    report = analyze(write_restarted(("RuntimeError", "key [red] is missing"), None, worlds=(2, 2)))
    assert "key [red] is missing" in render(report, length="full", width=200)
