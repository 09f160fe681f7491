"""The bars of attempts: one after the other, as long as the uses say."""

import polars as pl

from tracelens.accounting.life.ledger import LIFE_COLUMNS
from tracelens_dashboard.figures import life
from tracelens_dashboard.theme import LIGHT

S = 1_000_000_000


def uses_of(*rows: tuple[int, str, int]) -> pl.DataFrame:
    wall_ns = sum(ns for _, _, ns in rows)
    shares = [(*row, row[2] / wall_ns) for row in rows]
    return pl.DataFrame(shares, schema=LIFE_COLUMNS, orient="row")


def attempts_of(*kept_steps: int | None) -> pl.DataFrame:
    return pl.DataFrame({"kept_steps": kept_steps}, schema={"kept_steps": pl.Int32()})


def test_kept_steps_are_a_lower_bound_where_attempts_count_from_0() -> None:
    uses = uses_of((1, "repeated", 2 * S), (2, "kept", 8 * S))
    drawing = life.by_attempt(uses, attempts_of(None, 80), LIGHT)
    assert drawing.summary.startswith("Of 10.0 s, at least 80 % were steps that were kept")
    assert "at most 20 % steps done again later" in drawing.summary


def test_attempts_follow_each_other() -> None:
    uses = uses_of((1, "start_up", 2 * S), (1, "kept", 5 * S), (1, "dead", S), (2, "kept", 2 * S))
    drawing = life.by_attempt(uses, attempts_of(0, 50), LIGHT)
    bars = sorted(
        (base, base + length, label)
        for trace in drawing.figure.data
        for base, length, label in zip(trace.base, trace.x, trace.y, strict=True)
    )
    assert bars == [
        (0, 2 * S, "attempt 1"),
        (2 * S, 7 * S, "attempt 1"),
        (7 * S, 8 * S, "attempt 1"),
        (8 * S, 10 * S, "attempt 2"),
    ]
    assert drawing.summary.startswith("Of 10.0 s, 70 % were steps that were kept; 20 % start-up")
    assert [row["use"] for row in drawing.rows] == [
        "start-up",
        "steps that were kept",
        "between attempts",
        "steps that were kept",
    ]


def test_run_that_was_not_recorded_has_no_bars() -> None:
    drawing = life.by_attempt(pl.DataFrame(schema=LIFE_COLUMNS), attempts_of(), LIGHT)
    assert (len(drawing.figure.data), drawing.summary) == (0, life.NO_LIFE)
