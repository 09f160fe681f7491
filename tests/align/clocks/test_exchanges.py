"""A request bounds a clock difference; impossible bounds are reported."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.align.clocks.readings import Readings
from tracelens.align.clocks.requests import (
    EXCHANGE_COLUMNS,
    MAX_PEERS_COMBINED,
    map_by_requests,
    note_causality_violations,
)
from tracelens.model.clock_map import ClockMap

MS = 1_000_000
LEAD = 123 * MS  # of the clock that is to be tied
MAPPED = ClockMap(uncertainty_ns=10)


def exchange(sent_ns: int, there_ns: int = 100, back_ns: int = 100, **more: Any) -> dict[str, Any]:
    """Worker 1 asks server 0, in common time."""
    arrived, returned = sent_ns + there_ns, sent_ns + there_ns + 50
    found = {
        "sent": sent_ns,
        "arrived": arrived,
        "returned": returned,
        "answered": returned + back_ns,
    }
    return {"clock": 1, "peer": 0, "replied": True} | found | more


def as_shown(row: dict[str, Any], clock: int, lead: int = LEAD) -> dict[str, Any]:
    """Write the times of one clock as it shows them."""
    own = ("sent", "answered") if row["clock"] == clock else ("arrived", "returned")
    return row | {name: row[name] + lead for name in own}


def table(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=EXCHANGE_COLUMNS)


def error_ns(mapped: ClockMap | None, true_ns: int) -> int:
    assert mapped is not None
    return abs(int(mapped.to_common_ns(np.array([true_ns + LEAD]))[0]) - true_ns)


@pytest.mark.parametrize("clock", [0, 1], ids=["the server's", "the worker's"])
@given(
    ways=st.lists(st.tuples(st.integers(1, 10**5), st.integers(1, 10**5)), min_size=1, max_size=5)
)
def test_either_side_may_be_tied(clock: int, ways: list[tuple[int, int]]) -> None:
    """To within half of the narrowest window plus the uncertainty of the other clock."""
    rows = [exchange(n * MS, there_ns, back_ns) for n, (there_ns, back_ns) in enumerate(ways)]
    maps = {1 - clock: MAPPED}
    mapped = map_by_requests(table(*(as_shown(row, clock) for row in rows)), clock, maps, None)
    narrowest = min(there_ns + back_ns for there_ns, back_ns in ways)
    assert mapped is not None
    assert mapped.uncertainty_ns <= max(sum(way) for way in ways) / 2 + 10 + 200 * len(ways)
    assert error_ns(mapped, 0) <= mapped.uncertainty_ns + 2
    if len(ways) == 1:
        assert abs(mapped.uncertainty_ns - (narrowest / 2 + 10)) <= 1


def test_clocks_drift_while_a_server_works() -> None:
    """By no more than quartz does, a ten thousandth; the window is as much wider on either side."""
    served_ns = 100 * MS
    row = exchange(0)
    longer = row | {name: row[name] + served_ns for name in ("returned", "answered")}
    mapped = map_by_requests(table(as_shown(longer, 1)), 1, {0: MAPPED}, None)
    assert mapped is not None
    assert mapped.uncertainty_ns == pytest.approx(100 + 10 + served_ns // 10_000, abs=2)


def test_only_mapped_clocks_tie() -> None:
    rows = table(as_shown(exchange(0), 1))
    assert map_by_requests(rows, 1, {}, None) is None
    assert map_by_requests(rows, 1, {2: MAPPED}, None) is None
    assert map_by_requests(rows, 3, {0: MAPPED}, None) is None
    assert map_by_requests(table(), 1, {0: MAPPED}, None) is None


def test_only_the_narrowest_windows_are_combined() -> None:
    """So many of the other clocks; one with a wider window is not heard, though it contradicts."""
    sound = [as_shown(exchange(n * MS, peer=n + 2), 1) for n in range(MAX_PEERS_COMBINED)]
    liar = as_shown(exchange(0, 500, 500, peer=9), 1, LEAD + MS)
    maps = dict.fromkeys((*range(2, 2 + MAX_PEERS_COMBINED), 9), MAPPED)
    mapped = map_by_requests(table(liar, *sound), 1, maps, None)
    assert error_ns(mapped, 0) <= 110
    assert map_by_requests(table(liar, *sound[1:]), 1, maps, None) is None


def test_pushes_without_a_reply() -> None:
    """They count, unless that cannot be; then requests that were replied to count alone."""
    sound = as_shown(exchange(0, 4000, 4000), 1)
    push = as_shown(exchange(MS, 10, 10, replied=False), 1)
    mapped = map_by_requests(table(sound, push), 1, {0: MAPPED}, None)
    assert error_ns(mapped, 0) <= 600
    early = push | {"answered": push["answered"] - 9 * MS, "sent": push["sent"] - 9 * MS}
    mapped = map_by_requests(table(sound, early), 1, {0: MAPPED}, None)
    assert mapped is not None
    assert error_ns(mapped, 0) <= 1
    assert mapped.uncertainty_ns == 4010


@pytest.mark.parametrize("wrong", [False, True])
def test_wall_clocks_sharpen_requests_unless_they_contradict(*, wrong: bool) -> None:
    """They make it sharper, and are left out where they contradict."""
    rows = table(as_shown(exchange(0, 9000, 1000), 1))
    here = Readings(np.array([0]), np.array([200]), np.array([-LEAD + MS * wrong]))
    found = map_by_requests(rows, 1, {0: MAPPED}, here)
    assert found is not None
    assert (found.uncertainty_ns, error_ns(found, 0)) == ((5010, 4000) if wrong else (100, 0))


def sentences(rows: list[dict[str, Any]], uncertainty_ns: int = 10) -> list[str]:
    maps = {0: ClockMap(uncertainty_ns=uncertainty_ns), 1: ClockMap(uncertainty_ns=1)}
    return [note.sentence for note in note_causality_violations(table(*rows), maps)]


def test_requests_that_arrive_before_they_are_sent_are_counted() -> None:
    """By more than three times what either clock is unsure; on the way there and on the way back."""
    assert sentences([]) == []
    assert sentences([exchange(0, -30)]) == []
    assert sentences([exchange(0, -30)], 9)[0].startswith("1 of 2 messages ")
    (sentence,) = sentences([exchange(0, -35), exchange(5, 1, -77), exchange(9)])
    assert sentence.startswith("2 of 6 messages ")
    assert " by up to 47 ns more" in sentence
    (sentence,) = sentences([exchange(0, -35, -99, replied=False)])
    assert sentence.startswith("1 of 1 messages ")
    assert sentences([exchange(0, -99, peer=5), exchange(0, -99, clock=5)]) == []


def test_one_wrong_match_in_a_hundred_is_tolerated() -> None:
    fine = [exchange(n * MS) for n in range(99)]
    assert sentences([exchange(0, -99), *fine]) == []
    assert sentences([exchange(0, -99), exchange(1, -99), *fine]) == []
    assert sentences([exchange(n, -99) for n in range(3)] + fine)
