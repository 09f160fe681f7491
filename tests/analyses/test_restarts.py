"""A job that was started again tells why its attempts failed, and is judged by its last attempt."""

import polars as pl
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


TIMEOUT = "The client socket has timed out after 3000ms while trying to connect to (node-7, 29500)"
IN_USE = "The server socket has failed. port: 29500, code: -98, message: address already in use"


@pytest.mark.parametrize(
    ("exception", "obstacle"),
    [
        (
            ("ConnectionRefusedError", "[Errno 111] Connection refused"),
            "got ConnectionRefusedError",
        ),
        (("DistNetworkError", TIMEOUT), "could not reach node-7:29500 (DistNetworkError at"),
        (("DistNetworkError", IN_USE), "could not listen on port 29500, as the address is in use"),
        (
            ("OSError", "[Errno 98] Address already in use"),
            "could not listen, as the address is in use",
        ),
        (
            ("DistStoreError", "4 s waiting for clients. 1/2 joined."),
            "got DistStoreError",
        ),
        (
            ("RuntimeError", "[10.0.0.7]:4321: Connection refused"),
            "reach 10.0.0.7:4321",
        ),
    ],
    ids=["refused", "timeout", "listen", "in use", "clients", "gloo"],
)
@pytest.mark.parametrize("world", [2, 3])
def test_restart_that_cannot_connect_names_the_failure_before_it(
    exception: tuple[str, str], obstacle: str, world: int
) -> None:
    """All ranks of the restart are victims: none of them is the culprit."""
    worlds = (world, world)
    trace = write_restarted(("ValueError", "bad"), exception, worlds=worlds, failed_starts=[1])
    report = analyze(trace)
    crash = report.findings[0]
    assert (crash.kind, crash.ranks) == ("crash", (world - 1,))
    assert crash.sentence.startswith(f"Rank {world - 1} failed first in step 10: ValueError (bad)")
    assert "; in attempt 2 its ranks could not connect at the start: ranks 0" in crash.sentence
    assert obstacle in crash.sentence
    (finding,) = (one for one in report.findings if one.kind == "restarts")
    assert "in attempt 1 rank" in finding.sentence
    assert report.life is not None
    assert (report.life.failure or "").startswith("its ranks could not connect at the start")


def test_restart_that_fails_at_its_start_for_a_reason_of_its_own() -> None:
    exceptions = (("ValueError", "bad"), ("ImportError", "no module named flash"))
    trace = write_restarted(*exceptions, worlds=(3, 3), failed_starts=[1])
    sentence = analyze(trace).findings[0].sentence
    assert sentence.startswith("Rank 2 failed first in step 10: ValueError (bad)")
    assert "; in attempt 2 all 3 ranks failed: ImportError (no module named flash)" in sentence


def test_start_that_fails_after_an_attempt_that_ended_well_is_a_crash() -> None:
    trace = write_restarted(None, ("ImportError", "flash"), worlds=(2, 2), failed_starts=[1])
    crash = analyze(trace).findings[0]
    assert crash.kind == "crash"
    assert crash.sentence == (
        "Attempt 2 failed before its first step: all 2 ranks failed: ImportError (flash) at "
        "<module> (train.py:9)."
    )


def test_ranks_that_left_nothing_of_a_restart_are_named() -> None:
    trace = write_restarted(
        ("ValueError", "bad"), ("DistNetworkError", TIMEOUT), worlds=(2, 1), failed_starts=[1]
    )
    processes = trace.processes.with_columns(world=pl.lit(2, trace.processes["world"].dtype))
    sentence = analyze(trace.with_(processes=processes)).findings[0].sentence
    assert "rank 0 could not reach node-7:29500" in sentence
    assert sentence.endswith("; rank 1 left no recording of it.")


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
