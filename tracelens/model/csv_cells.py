"""Tables as CSV holds them, in which no recorded name acts on a terminal or a spreadsheet."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracelens.model.inert import clean

__all__ = ["cells"]

_FORMULA: Final = ("=", "+", "-", "@")  # what spreadsheets take as a formula
_TEXT: Final = "'"  # before what a spreadsheet shall take as text


def cells(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a table for a CSV file, in which no name acts: neither in a terminal nor as a formula.

    What begins like a formula gets an apostrophe before it (OWASP, "CSV Injection").
    """
    word_columns = [
        name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)
    ]
    return frame.with_columns(_make_inert(frame[name]) for name in word_columns)


def _make_inert(column: pl.Series) -> pl.Series:
    """Change the different words of a column, which are few, and leave it alone if none is changed."""
    known = column.unique().drop_nulls().cast(pl.String).to_list()
    changed = {word: made for word in known if (made := _to_cell(word)) != word}
    return column.cast(pl.String).replace(changed) if changed else column


def _to_cell(word: str) -> str:
    shown = clean(word)
    return _TEXT + shown if shown.startswith(_FORMULA) else shown
