"""Whatever a table holds, it is a trace with a valid report, or refused in one sentence."""

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import strategies as st
from support.runs.sound import check_ledger, negative
from support.tiers import check_examples, few_or_many

from tracelens import Trace
from tracelens.errors import TraceLensError
from tracelens.readers.table.naming import COLUMNS, OTHERS, TIMES
from tracelens.reports import to_json
from tracelens.reports.schema import find_problems
from tracelens.verdicts.report import analyze

SYNONYMS = [word for said in (TIMES | OTHERS).values() for word in said.split()]
WORDS = ["forward", "bwd", "AllReduce", "step", "update", "push", "ps_service", "elastic", "wait"]
names = st.one_of(
    st.sampled_from(COLUMNS),
    st.sampled_from(SYNONYMS),
    st.sampled_from(["start_ns", "end_ns", "duration_us", "start_s", "dur_ms", "type"]),
    st.text(max_size=8),
)
cells = st.one_of(
    st.none(),
    st.integers(-3, 12),
    st.integers(0, 10**6),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.sampled_from(["", "-1", "nan", "3", "2.5", "1e9", "2025-06-01T12:00:00Z", *WORDS]),
    st.text(max_size=6),
    st.binary(max_size=3),
    st.datetimes(min_value=dt.datetime(1900, 1, 1), max_value=dt.datetime(2500, 1, 1)),  # noqa: DTZ001 - tables often have naive times
    st.timedeltas(),
    st.lists(st.integers(), max_size=2),
)
small = st.integers(0, 5)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw a table that is usually nearly sound: some columns plausible, others anything."""
    height = draw(st.integers(0, 12))

    def column(entries: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(entries, min_size=height, max_size=height))

    sound = {
        "rank": small,
        "start_ns": st.integers(0, 200),
        "end_ns": st.one_of(st.none(), st.integers(50, 300)),
        "kind": st.sampled_from(WORDS),
        "seq": small,
        "thread": small,
        "step": small,
        "role": st.sampled_from(["worker", "ps", None]),
    }
    columns_chosen = {
        name: column(entries)
        for name, entries in sound.items()
        if name in ("rank", "start_ns", "end_ns") or draw(st.booleans())
    }
    odd = draw(st.dictionaries(names, st.booleans(), max_size=4))
    return columns_chosen | {name: column(cells if mixed else small) for name, mixed in odd.items()}


@pytest.mark.parametrize("examples", few_or_many(12, 40))
def test_random_tables_give_a_report_or_a_known_error(examples: int) -> None:
    """Ask for a report of tables that Hypothesis draws."""
    check_examples(check_table, examples, tables(), st.booleans())


def check_table(table: dict[str, list[Any]], one_clock: bool) -> None:  # noqa: FBT001 - drawn
    """Check that only known errors occur, each in one line, and that reports keep to their format."""
    try:
        trace = Trace.from_table(table, one_clock=one_clock)
    except TraceLensError as error:
        said = str(error)
        assert said.endswith(".")
        assert "\n" not in said
        return
    analyzed = analyze(trace)
    report = json.loads(to_json.render(analyzed))
    assert find_problems(report) == []
    assert list(negative(report["tables"])) == []
    if analyzed.ledger:
        check_ledger(analyzed)
    assert all(note["sentence"].endswith(".") for note in report["notes"])
