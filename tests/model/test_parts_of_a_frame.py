"""A process's part of a table shares what was made of the whole, and is sent without it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.runs.traces import span, trace_of

from tracelens.memory import BoundedCache
from tracelens.model.columns import Columns
from tracelens.model.events import FramePart, WholeFrame, source_of

ROWS = [
    span(rank, kind, at, at + 5) for rank in range(3) for at, kind in enumerate(("data", "forward"))
]


def part() -> FramePart:
    return FramePart(WholeFrame(trace_of(ROWS, ranks=3).events), 1)


def test_words_are_numbered_once_for_all() -> None:
    mine = part()
    other = replace(mine, process=2)
    alone, there = (
        mine.alone().columns((), BoundedCache()),
        other.alone().columns((), BoundedCache()),
    )
    assert alone.word_column("kind").known is there.word_column("kind").known


def test_it_is_sent_alone() -> None:
    mine = part()
    sent = pickle.loads(pickle.dumps(mine))  # noqa: S301 - its own
    assert sent.whole.processes == [1]
    assert_frame_equal(sent.frame(), mine.frame())
    found, expected = sent.columns((), BoundedCache()), mine.columns((), BoundedCache())
    assert found.height == expected.height == 2
    assert found.number("start_ns").tolist() == expected.number("start_ns").tolist()


@pytest.mark.timeout(60, method="thread")
def test_events_of_a_trace_that_was_sent_can_be_filtered() -> None:
    """Polars reads them in a thread of its own, while the property that it needs is computed."""
    whole = trace_of(ROWS, ranks=3)
    source = source_of(whole.events, range(3))
    sent = pickle.loads(pickle.dumps(source))  # noqa: S301 - its own
    events = sent.scan(whole.events.collect_schema())
    fewer = whole.with_(events=events.filter(pl.col("rank") != 1))
    assert fewer.source.frame(2).height == 2


ENUM = pl.Enum(["z", "a", "m"])


@pytest.mark.parametrize("kind", [pl.String(), pl.Categorical(), ENUM], ids=str)
@pytest.mark.parametrize("words", [[], [None], ["m", None, "a", "m"], ["z", "a"]], ids=str)
def test_words_are_numbered_in_their_order(kind: pl.DataType, words: list[str | None]) -> None:
    """As text, but for those of an enumeration, which have an order of their own."""
    frame = pl.DataFrame({"kind": pl.Series(words, dtype=pl.String).cast(kind)})
    found = Columns.of_frame(frame).word_column("kind")
    places = found.codes.tolist()
    assert [found.known[place] if place >= 0 else None for place in places] == words
    ordered = sorted(found.known, key=ENUM.categories.to_list().index if kind == ENUM else str)
    assert list(found.known) == ordered
