"""Notes are put where one means, written, deleted and drawn; their text is only ever text."""

import json
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder
from support.web.callbacks import call
from support.web.stores import slow_rank

from tracelens_dashboard.app.server import create_app
from tracelens_dashboard.components.timeline import notes
from tracelens_dashboard.components.timeline.notes import Notes
from tracelens_dashboard.figures.timeline import overlays, plot
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Frame, Note
from tracelens_dashboard.theme import DARK, LIGHT
from tracelens_dashboard.view import notes as noted
from tracelens_dashboard.view import viewport
from tracelens_dashboard.view.state import parse
from tracelens_dashboard.view.viewport import Controls

HOSTILE = "<img src=x onerror=alert(1)> &lt;b&gt;; 50 %"
AT = 200_000_000


def frame_with(*known: Note, t0: int = 100_000_000, t1: int = 300_000_000) -> Frame:
    view = {"t0": t0, "t1": t1}
    return viewport.frame(slow_rank(), Controls(view, [], None, notes=noted.for_browser(known)))


def test_a_note_is_put_at_the_mouse_the_selected_span_or_the_middle() -> None:
    """In this order; outside of the run it is put at the run's end."""
    store, view = slow_rank(), {"t0": 0, "t1": 4000}
    chosen = {"lane": 0, "at": 77}
    assert notes.choose_time(store, {"xvals": [0.25], "yvals": [3]}, chosen, view) == 250_000_000
    assert notes.choose_time(store, None, chosen, view) == 77
    assert notes.choose_time(store, None, None, view) == 2000
    beyond = notes.choose_time(store, {"xvals": [1e8], "yvals": [3]}, None, view)
    assert beyond == store.run_window.width_ns - 1
    assert notes.choose_time(store, {"xvals": [float("nan")], "yvals": [3]}, None, view) == 2000


def put(**values: Any) -> dict[str, Any]:
    """Press the key; return what the page gets: notes, which is edited, what is wrong."""
    sent_values = {"timeline-key.data": {"key": "m", "presses": 1}} | values
    app = create_app(slow_rank())
    output = next(name for name in app.callback_map if name.startswith("..timeline-notes.data"))
    key = output.strip(".").split("...")[0]
    answer = call(app, key, sent_values).get_json()["response"]
    return {name.partition("@")[0]: part for name, part in answer.items()}


def test_a_marked_area_gets_the_note_once() -> None:
    """Pressed again, the note is put at the mouse."""
    marked = {"range": {"x": [0.1, 0.2], "y": [0, 30]}}
    hover = {"xvals": [0.25], "yvals": [3]}
    selection = {"timeline.selectedData": marked, "timeline.hoverData": hover}
    answer = put(**selection)
    assert answer["timeline-notes"]["data"] == ["100000000-200000000"]
    assert answer["timeline-note-edited"]["data"] == 0
    second_answer = put(**selection, **{"timeline-notes.data": answer["timeline-notes"]["data"]})
    assert second_answer["timeline-notes"]["data"] == ["100000000-200000000", "250000000"]


def test_a_full_link_takes_no_more() -> None:
    """The sentence says what to do; the notes stay as they are."""
    many = [f"{at}:x" for at in range(noted.MOST_NOTES)]
    found = put(**{"timeline-notes.data": many})
    assert "timeline-notes" not in found
    assert "delete one" in found["timeline-note-problem"]["children"]


def test_notes_are_written_edited_and_deleted() -> None:
    """What is typed is cut to what an address holds, and is printable."""
    present_notes = (Note(1), Note(5, 9, "old"))
    assert notes.apply_action(present_notes, {"does": "edit", "number": 1}) == Notes(
        present_notes, 1
    )
    assert notes.apply_action(present_notes, {"does": "leave", "number": 1}) == Notes(present_notes)
    saved = notes.apply_action(
        present_notes, {"does": "keep", "number": 1, "text": "  a\u202eb\n" + "x" * 99}
    )
    assert saved is not None
    assert saved.notes[1] == Note(5, 9, "ab" + "x" * (noted.LONGEST_TEXT - 2))
    assert saved.edited_index is None
    assert notes.apply_action(present_notes, {"does": "delete", "number": 0}) == Notes(
        present_notes[1:]
    )


def test_a_button_keeps_what_is_typed() -> None:
    """While a field is open, another note is deleted: both happen, whichever is first."""
    present_notes = (Note(1), Note(5, 9, "old"))
    asked = {"does": "delete", "number": 1, "kept": {"number": 0, "text": "typed"}}
    before = notes.with_typed(present_notes, asked)
    assert notes.apply_action(before, asked) == Notes((Note(1, None, "typed"),))
    for senseless in ({"kept": 5}, {"kept": {"number": 7, "text": "x"}}, {}):
        assert notes.with_typed(present_notes, senseless) == present_notes


@pytest.mark.parametrize(
    "asked",
    [{}, {"does": "delete"}, {"does": "delete", "number": 2}, {"does": "delete", "number": -1},
     {"does": "x", "number": 0}, {"does": [1], "number": "0"}],
)  # fmt: skip
def test_invalid_actions_change_no_note(asked: dict[str, Any]) -> None:
    """Invalid actions change no note."""
    assert notes.apply_action((Note(1), Note(2)), asked) is None


def test_text_of_an_address_is_shown_as_text() -> None:
    """In the list it is a child of a component; in the figure, which reads tags, it is escaped."""
    written = noted.write([Note(AT, None, HOSTILE)])
    (note,) = parse({"note": written}).notes
    assert note.text == HOSTILE
    (line,) = notes.lay_out_list(Notes((note,)))
    assert HOSTILE in json.dumps(line, cls=PlotlyJSONEncoder)
    labels = overlays.note_labels(frame_with(note), LIGHT)
    assert [label["text"] for label in labels] == [
        "&lt;img src=x onerror=alert(1)&gt; &amp;lt;b&amp;gt;; 50 %"
    ]


def test_a_note_is_a_line_and_over_time_a_band() -> None:
    """Through all rows, at its times, in the figure and in what a zoom changes."""
    frame = frame_with(Note(AT, None, "here"), Note(AT + 1000, AT + 2000))
    changing_parts = plot.draw_changing(frame, viewport.picture(frame), DARK)
    line, band = (shape for shape in changing_parts["shapes"] if shape.get("name") == "note")
    assert (line["type"], line["x0"], line["x1"]) == (
        "line",
        AT / NS_PER_SECOND,
        AT / NS_PER_SECOND,
    )
    assert (band["type"], band["x0"], band["x1"]) == (
        "rect",
        (AT + 1000) / NS_PER_SECOND,
        (AT + 2000) / NS_PER_SECOND,
    )
    assert line["y0"] == 0
    assert line["y1"] > 1
    texts = [
        annotation["text"]
        for annotation in changing_parts["annotations"]
        if annotation.get("name") == "note"
    ]
    assert len(texts) == 2
    assert plot.height_px(frame) == plot.height_px(frame_with()) + overlays.NOTE_PX


def test_texts_keep_out_of_each_others_way() -> None:
    """A text ends before the next one begins; a sign replaces it if it has no room."""
    long = "a text of fifty letters, of which some are left out"
    frame = frame_with(Note(AT, None, long), Note(AT + 10_000_000, None, long))
    first, last = [label["text"] for label in overlays.note_labels(frame, LIGHT)]
    assert first.endswith("\u2026")
    assert len(first) < len(last) == len(long)
    close = frame_with(Note(AT, None, long), Note(AT + 1000, None, "next"))
    assert [label["text"] for label in overlays.note_labels(close, LIGHT)] == [
        overlays.NO_TEXT,
        "next",
    ]


def test_what_is_beside_the_view_has_no_text() -> None:
    """A band that reaches into it has its text where the view begins."""
    frame = frame_with(Note(1, None, "before"), Note(400_000_000, None, "after"),
                       Note(50_000_000, 150_000_000, "into"))  # fmt: skip
    (label,) = overlays.note_labels(frame, LIGHT)
    assert (label["text"], label["x"]) == ("into", 0.1)


def test_notes_of_another_run_are_left_out_in_a_sentence() -> None:
    """Those beyond its end, and those that could not be read."""
    store = slow_rank()
    view = parse({"note": f"5:one;x;{store.run_window.width_ns}:end"})
    page = json.dumps(notes.layout(store, view), cls=PlotlyJSONEncoder)
    assert "2 notes of this address are none of this run; left out." in page
    assert '"5:one"' in page
    assert "left out" not in json.dumps(
        notes.layout(store, parse({"note": "5:one"})), cls=PlotlyJSONEncoder
    )
