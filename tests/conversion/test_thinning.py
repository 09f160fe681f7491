"""What step sampling keeps of a step without detail is what its rules say, span by span."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.conversion.columns import count_depths
from tracelens.conversion.definitions import tabulate_definitions
from tracelens.conversion.retention import (
    SampledEvents,
    Sampling,
    ThinnedEvents,
    number_phases,
    number_rows,
    thin,
)
from tracelens.schema.side import Definition

KINDS = tabulate_definitions(
    [
        Definition(1, "step", "step"),
        Definition(2, "a", "user"),
        Definition(3, "b", "forward"),
        Definition(4, "c", "backward"),
        Definition(5, "d", "elastic", op="grow"),
        Definition(6, "e", "elastic", op="shrink"),
        Definition(7, "f", "elastic"),
        Definition(8, "g", "forward", op="grow"),
    ]
)
STEP, USER, FORWARD, BACKWARD, GROW, SHRINK, ELASTIC, OTHER_FORWARD = number_phases(
    KINDS.kind, KINDS.op
).tolist()[1:]
IN_FLIGHT = np.array([False, True, True, False])  # the last is for threads that were named later
SAMPLING = Sampling(period_steps=10, burst_steps=1)


class Event(NamedTuple):
    """One of those to choose from."""

    start_ns: int
    end_ns: int
    phase: int = FORWARD
    thread: int = 0
    step: int = 1
    group: int = 0
    is_span: bool = True
    has_ended: bool = True
    was_undecided: bool = False


def thinned(events: Sequence[Event], **more: Any) -> ThinnedEvents:
    columns: dict[str, Any] = {
        name: np.array([getattr(event, name) for event in events], np.int64)
        for name in Event._fields
    }
    for name in ("is_span", "has_ended", "was_undecided"):
        columns[name] = columns[name].astype(np.bool_)
    columns["phase_codes"] = columns.pop("phase")
    columns["call_group_codes"] = columns.pop("group")
    depth = count_depths(columns["thread"], columns["start_ns"], columns["end_ns"])
    return thin(SampledEvents(depth=depth, **columns), SAMPLING, IN_FLIGHT, **more)


def kept_flags(*events: Event, **more: Any) -> list[bool]:
    flags: list[bool] = thinned(events, **more).is_kept.tolist()
    return flags


FLYING = st.lists(
    st.builds(
        lambda step, group, thread, was_undecided: Event(
            0, 1, thread=thread, step=step, group=group, was_undecided=was_undecided
        ),
        step=st.integers(0, 3),
        group=st.integers(0, 1),
        thread=st.integers(1, 2),
        was_undecided=st.booleans(),
    ),
    max_size=12,
)


def in_order(events: Sequence[Event]) -> list[Event]:
    return [event._replace(start_ns=at, end_ns=at + 1) for at, event in enumerate(events)]


def is_last(at: int, events: Sequence[Event], *alike: str) -> bool:
    """Whether no later event is like this one in these."""
    mine = [getattr(events[at], name) for name in alike]
    return not any([getattr(event, name) for name in alike] == mine for event in events[at + 1 :])


@given(FLYING.map(in_order))
def test_the_last_of_each_kind_in_each_step(events: list[Event]) -> None:
    """Of what is in flight; step 0 has its detail; a step, a kind and a thread each."""
    thinning = thinned(events)
    assert thinning.is_kept.tolist() == [
        event.step == 0 or is_last(at, events, "thread", "group", "step")
        for at, event in enumerate(events)
    ]
    assert not thinning.is_undecided.any()


@given(FLYING.map(lambda events: in_order(sorted(events, key=lambda event: event.step))))
def test_the_newest_of_each_kind_waits_once(events: list[Event]) -> None:
    """Its step may continue in the next chunk; an event waits for one chunk only."""
    thinning = thinned(events, is_last=False, continues=True)
    for index, event in enumerate(events):
        summarised = [other if other.step else other._replace(group=9) for other in events]
        newest = event.step != 0 and is_last(index, summarised, "thread", "group")
        lasts = is_last(index, events, "thread", "group", "step")
        assert thinning.is_undecided[index] == (newest and not event.was_undecided)
        assert thinning.is_kept[index] == (
            event.step == 0 or (lasts and not thinning.is_undecided[index])
        )


Tree = tuple[int, list[Any]]  # a phase, and what is in it
TREES: st.SearchStrategy[list[Tree]] = st.lists(
    st.recursive(
        st.tuples(st.sampled_from([STEP, USER, FORWARD, BACKWARD]), st.just([])),
        lambda inner: st.tuples(
            st.sampled_from([STEP, USER, FORWARD, BACKWARD]), st.lists(inner, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=3,
)


def laid_out(trees: list[Tree], thread: int) -> list[tuple[Event, bool]]:
    """Return spans as trees are nested, and whether each is the outermost of its phase."""
    events: list[tuple[Event, bool]] = []

    def walk(tree: Tree, begin_ns: int, around: int) -> int:
        phase, inner = tree
        index = len(events)
        events.append((Event(0, 0), False))
        effective_phase = around if phase == USER and around != STEP else phase
        end = begin_ns
        for child in inner:
            end = walk(child, end + index % 2, effective_phase)
        end += 1
        events[index] = (
            Event(begin_ns, end, phase, thread),
            phase == STEP or effective_phase != around,
        )
        return end

    begin_ns = 5
    for tree in trees:
        begin_ns = walk(tree, begin_ns, STEP)
    return events


@given(TREES, TREES)
def test_the_outermost_of_each_phase(one: list[Tree], other: list[Tree]) -> None:
    """On each thread by itself; a user's span in a phase is of that phase, and steps are kept."""
    found = laid_out(one, 0) + laid_out(other, 3)
    assert kept_flags(*(event for event, _ in found)) == [outermost for _, outermost in found]


def test_what_takes_no_time_holds_nothing() -> None:
    """And what begins when another ends is not in it."""
    assert kept_flags(Event(5, 5), Event(5, 5), Event(6, 9), Event(9, 12), Event(9, 9)) == [
        *[True] * 4,
        False,
    ]


def test_nested_phases_are_all_outermost_to_a_sane_depth() -> None:
    """However deep, phases that follow each other inwards are all outermost, to a sane depth."""
    events = [Event(at, 200 - at, (FORWARD, BACKWARD)[at % 2]) for at in range(50)]
    found = kept_flags(*events)
    assert found == [True] * 33 + [False] * 17


def test_only_steps_beyond_the_burst_are_summarised() -> None:
    """In each period of steps; events outside of steps are kept."""
    steps = np.arange(-3, 40)
    for period in range(1, 8):
        for burst in range(1, period + 1):
            expected = [step >= 0 and step % period not in range(burst) for step in range(-3, 40)]
            assert Sampling(period, burst).is_summarised(steps).tolist() == expected


def test_what_is_no_span() -> None:
    """It has no time to be divided, on no thread."""
    moments = [Event(5, 5, thread=thread, is_span=False) for thread in (0, 1)]
    assert kept_flags(*moments) == [False, False]
    assert kept_flags(*(event._replace(step=10) for event in moments)) == [True, True]


INNER = Event(5, 9), Event(6, 7)


def test_spans_that_never_ended() -> None:
    """They are kept wherever they are: a thread may be stuck there."""
    stuck = INNER[1]._replace(end_ns=1 << 60, has_ended=False)
    assert kept_flags(*INNER) == [True, False]
    assert kept_flags(INNER[0], stuck) == [True, True]
    assert kept_flags(Event(5, 9, thread=1), stuck._replace(thread=1), Event(8, 9, thread=1)) == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("continues", [False, True])
def test_a_step_that_never_ended(*, continues: bool) -> None:
    """It keeps its detail, as no other does; unless it is only not over yet."""
    step = Event(1, 1 << 60, STEP, has_ended=False)
    before = [event._replace(step=2, thread=3) for event in INNER]
    found = kept_flags(step, *INNER, *before, continues=continues)
    assert found == [True, True, not continues, True, False]
    moment = Event(2, 2, STEP, is_span=False, has_ended=False)
    assert kept_flags(moment, *INNER) == [True, True, False]


def test_threads_that_are_not_known() -> None:
    """An unknown thread is not treated as a track of calls in flight."""
    assert kept_flags(*(event._replace(thread=90) for event in INNER)) == [True, False]


def test_each_phase_is_a_kind() -> None:
    """A phase is a kind; elastic operations are phases of their own."""
    of_all = [STEP, USER, FORWARD, BACKWARD, GROW, SHRINK, ELASTIC]
    assert len({*of_all}) == len(of_all)
    assert OTHER_FORWARD == FORWARD
    later = tabulate_definitions(
        [Definition(1, "c", "elastic", op="x"), Definition(2, "d", "elastic")]
    )
    assert len({*number_phases(later.kind, later.op).tolist()[1:]}) == 2


@given(st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=1, max_size=20))
def test_equal_rows_have_one_group_number(rows: list[tuple[int, int, int]]) -> None:
    """Rows have the same number where they are equal, and only there."""
    found = number_rows(*np.array(rows, np.int64).T).tolist()
    assert len({*found}) == len({*rows}) == len({*zip(found, rows, strict=True)})
