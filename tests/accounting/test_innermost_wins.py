"""Of properly nested spans the innermost counts: checked against a nanosecond-by-nanosecond count."""

from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st
from support.runs.traces import span, trace_of
from support.tiers import check_examples, few_or_many

from tracelens.accounting import phases
from tracelens.load import prepare
from tracelens.schema.vocabulary import OWN_KINDS

LENGTH = 60


@st.composite
def draw_nested_spans(
    draw: st.DrawFn, first: int = 0, last: int = LENGTH, depth: int = 0
) -> list[Any]:
    """Draw spans side by side within bounds, each with spans inside."""
    rows = []
    next_start = first
    while next_start < last and draw(st.booleans()):
        start = draw(st.integers(next_start, last))
        end = draw(st.integers(start, last))
        kind = draw(st.sampled_from(OWN_KINDS))
        rows.append(span(0, kind, start, end, name=f"{kind}@{depth}", depth=depth))
        if depth < 3:
            rows += draw(draw_nested_spans(first=start, last=end, depth=depth + 1))
        next_start = end + 1
    return rows


def by_hand(rows: list[dict[str, Any]], at: int) -> tuple[str, str | None]:
    """Find what a nanosecond is, by definition."""
    active = [row for row in rows if row["start_ns"] <= at < row["end_ns"]]
    active.sort(key=lambda row: row["depth"])
    kinds = [row["kind"] for row in active if row["kind"] != "user"]
    if kinds:
        return kinds[-1], active[-1]["name"]
    return ("user", active[-1]["name"]) if active else ("uninstrumented", None)


@pytest.mark.parametrize("examples", few_or_many(20, 60))
def test_each_nanosecond_belongs_to_the_innermost_span(examples: int) -> None:
    """Category and name of each nanosecond are those of the definition."""
    step = span(0, "step", 0, LENGTH, step=0)

    def check(rows: list[dict[str, Any]]) -> None:
        found = phases.run(prepare(trace_of([step, *rows]))).segments
        cut = found.select("category", "name", at=pl.int_ranges("start_ns", "end_ns"))
        labels = cut.explode("at").sort("at").select(pl.col("category", "name").cast(pl.String))
        assert labels.rows() == [by_hand(rows, at) for at in range(LENGTH)]

    check_examples(check, examples, draw_nested_spans())
