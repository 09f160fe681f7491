"""A link restores a view; unknown parts of the address are ignored, never an error."""

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.lod.viewport import LEAST_ROW_PX, MOST_ROW_PX
from tracelens_dashboard.figures.timeline.frame import Note
from tracelens_dashboard.view.notes import LONGEST_TEXT, MOST_NOTES, fits
from tracelens_dashboard.view.state import (
    LONGEST_QUERY,
    MOST_OPENED,
    MOST_PINS,
    NO_RUN,
    SORTS,
    ViewState,
    parse,
    read,
)

VIEWS = st.builds(
    ViewState,
    start_ns=st.integers(0, 10**15),
    end_ns=st.integers(10**15 + 1, 10**17),
    pinned_ranks=st.lists(st.integers(0, 5000), unique=True, max_size=MOST_PINS).map(tuple),
    marked_steps=st.none() | st.tuples(st.integers(0, 500), st.integers(500, 10**6)),
    shard=st.none() | st.integers(0, 500),
    sort_key=st.sampled_from(SORTS),
    run_key=st.none() | st.from_regex(r"[0-9a-f]{12}", fullmatch=True, alphabet="0123456789abcdef"),
    baseline_ids=st.lists(st.sampled_from(["0123456789ab", "ba9876543210"]), unique=True).map(
        tuple
    ),
    selected_point=st.none()
    | st.tuples(st.integers(0, 5000), st.integers(0, 10**15))
    | st.tuples(st.integers(0, 5000), st.integers(0, 10**15), st.integers(0, 159)),
    shows_path=st.booleans(),
    opened_row_keys=st.none()
    | st.lists(st.sampled_from(["0", "17", "ps0", "ps31"]), unique=True).map(tuple),
    row_px=st.none() | st.integers(LEAST_ROW_PX, MOST_ROW_PX),
    notes=st.lists(
        st.builds(
            Note,
            st.integers(0, 10**15),
            st.none() | st.integers(10**15 + 1, 10**17),
            st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=LONGEST_TEXT)
            | st.just("100 %; 1-2:3 & <b>"),
        ),
        max_size=MOST_NOTES,
    )
    .map(tuple)
    .filter(fits),
    replay_edits=st.lists(
        st.sampled_from(["rank:3,phase:data=median", "bandwidth*2", "buckets=4MiB", "latency/2"]),
        unique=True,
    ).map(tuple),
)


@given(view=VIEWS)
def test_a_link_restores_the_view(view: ViewState) -> None:
    """What a link says is what is read back from it."""
    path, _, query = view.make_link("/timeline").partition("?")
    assert path == "/timeline"
    assert parse(dict(parse_qsl(query))) == view


@given(
    query=st.dictionaries(
        st.sampled_from(
            [
                "t0",
                "t1",
                "pin",
                "steps",
                "sort",
                "shard",
                "run",
                "compare",
                "sel",
                "path",
                "open",
                "row",
                "what",
                "note",
            ]
        ),
        st.text(),
    )
)
def test_nonsense_is_ignored(query: dict[str, str]) -> None:
    """No text in the address bar makes reading it fail."""
    view = parse(query)
    assert view.sort_key in SORTS
    assert len(view.pinned_ranks) <= MOST_PINS
    assert (view.start_ns is None) == (view.end_ns is None)


@pytest.mark.parametrize(
    "query",
    [
        {"t0": "5"},  # half a window
        {"t0": "9", "t1": "3"},  # backwards
        {"t0": "1e9", "t1": "2e9"},
        {"t0": "-5", "t1": "10"},
        {"pin": "1;2"},
        {"pin": "9" * 300},
        {"steps": "9-3"},
        {"steps": "<script>"},
        {"shard": "²"},
        {"sel": "3"},
        {"sel": "-1-5"},
        {"sel": "1-5-x"},
        {"row": "1000"},
        {"row": "0"},
        {"open": ""},
        {"sort": "rank; drop"},
        {"note": "early"},
        {"note": "9-3:backwards"},
        {"note": "5:" + "x" * (LONGEST_TEXT + 1)},
        {"note": "5:a\u202eb"},
        {"note": ";".join(["5:x"] * 1000)},
        {"t0": ["1"], "t1": {"a": 2}},
    ],
)
def test_each_kind_of_nonsense_leaves_the_default(query: dict[str, object]) -> None:
    """A value that makes no sense counts as absent."""
    assert parse(query) == ViewState()


def test_repeated_and_too_many_pins() -> None:
    """Pins are kept once each, in their order, up to a limit."""
    assert parse({"pin": "3,1,3,x,2"}).pinned_ranks == (3, 1, 2)
    assert len(parse({"pin": ",".join(map(str, range(50)))}).pinned_ranks) == MOST_PINS


def test_nothing_opened_is_not_the_same_as_nothing_said() -> None:
    """Without a word as many as there is room for are opened; what names no process is left out."""
    assert parse({}).opened_row_keys is None
    assert parse({"open": "none"}).opened_row_keys == ()
    assert parse({"open": "3,ps1,3,x,../etc"}).opened_row_keys == ("3", "ps1")
    assert len(parse({"open": ",".join(map(str, range(50)))}).opened_row_keys or ()) == MOST_OPENED


@pytest.mark.parametrize("run", ["../../etc/passwd", "0123", "0123456789AB", "run-1", "%2e%2e"])
def test_what_cannot_be_a_run_is_an_unknown_one(run: str) -> None:
    """A run is asked for by an id; anything else is told to be unknown, not taken for none."""
    assert parse({"run": run}).run_key == NO_RUN
    assert parse({"compare": run}).baseline_ids == (NO_RUN,)


def test_the_browser_tells_an_address_with_its_question_mark() -> None:
    """What Dash calls the search of an address is read like the query of a page."""
    assert read("?run=0123456789ab&pin=2") == ViewState(run_key="0123456789ab", pinned_ranks=(2,))
    assert read(None) == ViewState()


def test_notes_that_make_no_sense_are_left_out_and_counted() -> None:
    """The other notes are kept; of too many, the first ones."""
    view = parse({"note": "5:one;7-6:backwards;;8-9:two;-1:x;10"})
    assert view.notes == (Note(5, None, "one"), Note(8, 9, "two"), Note(10))
    assert view.left_out_note_count == 3
    many = parse({"note": ";".join(f"{at}:x" for at in range(MOST_NOTES + 5))})
    assert [note.start_ns for note in many.notes] == list(range(MOST_NOTES))
    assert many.left_out_note_count == 5
    assert parse({"note": ""}).left_out_note_count == parse({}).left_out_note_count == 0


def test_a_link_with_all_notes_is_read_whole() -> None:
    """An address that `fits` accepts passes through servers, with signs of three bytes."""
    notes = [Note(10**17 - 1, 10**17, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * LONGEST_TEXT)]
    while fits([*notes, notes[0]]):
        notes.append(notes[0])
    assert len(notes) > 3
    view = ViewState(0, 10**17, tuple(range(4000, 4000 + MOST_PINS)), notes=tuple(notes))
    link = view.make_link("/timeline")
    assert read(link.partition("?")[2]) == view
    assert len(link) < LONGEST_QUERY
