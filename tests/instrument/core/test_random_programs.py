"""Whatever program of nested, failing, repeated spans is run, exactly it is found in the trace."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from support.launch.recording import read_one

import tracelens as tl

Form = Literal["with", "values", "token", "instant"]
SPANS = [tl.span(f"work {number}") for number in range(3)]


@dataclass(frozen=True)
class Work:
    """A span in one of its forms, what is done inside, and whether it fails at the end."""

    span: int
    form: Form
    fails: bool
    inside: tuple[Work, ...]


class FailureError(Exception):
    """What a failing piece of work raises."""


def works(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        Work,
        st.integers(0, 2),
        st.sampled_from(["with", "values", "token"]),
        st.booleans(),
        st.lists(inside, max_size=3).map(tuple),
    )


LEAVES = st.builds(Work, st.integers(0, 2), st.just("instant"), st.just(False), st.just(()))
PROGRAMS = st.lists(st.recursive(LEAVES, works, max_leaves=12), max_size=4)


def run(work: Work) -> None:
    span = SPANS[work.span]
    if work.form == "instant":
        tl.instant(f"work {work.span}", nbytes=work.span)
    elif work.form == "token":
        token = span.begin(bucket=work.span)
        try:
            run_inside(work)
        except FailureError:
            token.end(failed=True)
            raise
        token.end()
    else:
        with span if work.form == "with" else span(nbytes=work.span):
            run_inside(work)


def run_inside(work: Work) -> None:
    for inner in work.inside:
        try:
            run(inner)
        except FailureError:
            continue
    if work.fails:
        raise FailureError


def list_expected_events(
    work: Work, depth: int
) -> list[tuple[str, str, int, int | None, int | None]]:
    """List the events of a piece of work in the order in which they begin."""
    own_row = (
        f"work {work.span}",
        "exception" if work.fails else "closed",
        depth,
        work.span if work.form in {"values", "instant"} else None,
        work.span if work.form == "token" else None,
    )
    return [
        own_row,
        *(row for inner in work.inside for row in list_expected_events(inner, depth + 1)),
    ]


@given(PROGRAMS)
@settings(max_examples=60, deadline=None)
def test_trace_is_the_program(program: list[Work]) -> None:
    """Names, statuses, values and nesting, in order."""
    with tempfile.TemporaryDirectory() as folder:
        tl.start(folder)
        for work in program:
            run_inside(Work(0, "with", fails=False, inside=(work,)))
        tl.stop()
        events = read_one(Path(folder)).events
    found = [(e["name"], e["status"], e["depth"], e["bytes"], e["bucket"]) for e in events]
    assert found == [row for work in program for row in list_expected_events(work, 0)]
