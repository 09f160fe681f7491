"""A process's part of a table shares what was made of the whole, and is sent without it."""

import pickle
from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.runs.traces import span, trace_of

from tracelens.memory import BoundedCache
from tracelens.model.columns import Columns
from tracelens.model.events import FramePart, WholeFrame, make_source

ROWS = [
    span(rank, kind, at, at + 5) for rank in range(3) for at, kind in enumerate(("data", "forward"))
]


def frame_part() -> FramePart:
    return FramePart(WholeFrame(trace_of(ROWS, ranks=3).events), 1)


def test_words_are_numbered_once_for_all() -> None:
    own_part = frame_part()
    other_part = replace(own_part, process=2)
    own_columns, other_columns = (
        own_part.detach().read_columns((), BoundedCache()),
        other_part.detach().read_columns((), BoundedCache()),
    )
    assert (
        own_columns.word_column("kind").vocabulary is other_columns.word_column("kind").vocabulary
    )


def test_it_is_sent_alone() -> None:
    own_part = frame_part()
    sent = pickle.loads(pickle.dumps(own_part))  # noqa: S301 - its own
    assert sent.all_events.processes == [1]
    assert_frame_equal(sent.read_frame(), own_part.read_frame())
    sent_columns, expected = (
        sent.read_columns((), BoundedCache()),
        own_part.read_columns((), BoundedCache()),
    )
    assert sent_columns.row_count == expected.row_count == 2
    assert (
        sent_columns.number_column("start_ns").tolist()
        == expected.number_column("start_ns").tolist()
    )


@pytest.mark.timeout(60, method="thread")
def test_events_of_a_trace_that_was_sent_can_be_filtered() -> None:
    """Polars reads them in a thread of its own, while the property that it needs is computed."""
    trace = trace_of(ROWS, ranks=3)
    source = make_source(trace.events, range(3))
    sent = pickle.loads(pickle.dumps(source))  # noqa: S301 - its own
    events = sent.scan(trace.events.collect_schema())
    fewer = trace.with_(events=events.filter(pl.col("rank") != 1))
    assert fewer.source.read_frame(2).height == 2


ENUM = pl.Enum(["z", "a", "m"])


@pytest.mark.parametrize("kind", [pl.String(), pl.Categorical(), ENUM], ids=str)
@pytest.mark.parametrize("values", [[], [None], ["m", None, "a", "m"], ["z", "a"]], ids=str)
def test_words_are_numbered_in_their_order(kind: pl.DataType, values: list[str | None]) -> None:
    """As text, but for those of an enumeration, which have an order of their own."""
    frame = pl.DataFrame({"kind": pl.Series(values, dtype=pl.String).cast(kind)})
    column = Columns.from_frame(frame).word_column("kind")
    codes = column.codes.tolist()
    assert [column.vocabulary[code] if code >= 0 else None for code in codes] == values
    ordered = sorted(
        column.vocabulary, key=ENUM.categories.to_list().index if kind == ENUM else str
    )
    assert list(column.vocabulary) == ordered
