"""Notes of the user on the timeline: put, written, found again and deleted; the address keeps them.

Buttons and the field carry `data-note`; assets/notes.js hands what is done with them to the server.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from tracelens.lod.viewport import Window
from tracelens_dashboard import ids, text
from tracelens_dashboard.components import fields
from tracelens_dashboard.components.timeline import area, keys, names
from tracelens_dashboard.figures.timeline.frame import NS_PER_SECOND, Note
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import notes as address_notes
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

KEY: Final = "m"
BUTTON: Final = "note-button"  # assets/notes.js: as the key, but the mouse is on the button
BUTTON_TITLE: Final = (
    "Put a note over the marked area, at the selected span, or in the middle (m: at the mouse)"
)
FIELD: Final = "timeline-note-field"
GO, EDIT, DELETE, KEEP, LEAVE = "go", "edit", "delete", "keep", "leave"
MARGIN_NOTE_LENGTHS: Final = (
    0.5  # of a stretch's length, on either side, where it is wider than the window
)
NO_ROOM: Final = (
    f"A link has room for {address_notes.MOST_NOTES} notes, or fewer long ones: delete one to put "
    "another."
)


class Notes(NamedTuple):
    """All notes, and the index of the one that has a field for its text, or None."""

    notes: tuple[Note, ...]
    edited_index: int | None = None


def button() -> Component:
    """Return the button that puts a note."""
    return fields.button("Note", BUTTON, size="compact-sm", fw=500, **aria(BUTTON_TITLE))


def layout(store: Store, view: ViewState) -> list[Component]:
    """Return the list of notes, and what the browser keeps of them."""
    notes_in_run = [note for note in view.notes if note.start_ns < store.run_window.width_ns]
    left_out_count = view.left_out_note_count + len(view.notes) - len(notes_in_run)
    singular = "note of this address is none of this run"
    plural = "notes of this address are none of this run"
    left_out_text = f"{text.count(left_out_count, singular, plural)}; left out."
    problem = left_out_text if left_out_count else None
    return [
        html.P(problem, id=names.NOTE_PROBLEM, className="summary", role="status"),
        html.Div(id=names.NOTE_LIST, className="notes-list"),
        dcc.Store(id=names.NOTES, data=address_notes.for_browser(notes_in_run)),
        dcc.Store(id=names.NOTED),
        dcc.Store(id=names.NOTE_EDITED),
    ]


def register(app: Dash) -> None:
    """Put notes, change them, and list them."""
    changed = (
        Output(names.NOTES, "data", allow_duplicate=True),
        Output(names.NOTE_EDITED, "data", allow_duplicate=True),
        Output(names.NOTE_PROBLEM, "children", allow_duplicate=True),
    )

    @app.callback(
        *changed,
        Input(keys.PRESSED, "data"),
        State(names.NOTES, "data"),
        State(names.GRAPH, "selectedData"),
        State(names.GRAPH, "hoverData"),
        State(names.SELECTED, "data"),
        State(names.VIEW, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def put(pressed: Any, notes: Any, marked: Any, hover_data: Any, *shown: Any) -> tuple[Any, ...]:
        """Return the notes with a new one, the edited one's index, and a problem, if any."""
        press = pressed if isinstance(pressed, dict) else {}
        current.prevent_update_unless(press.get("key") == KEY)
        selected, view, run = shown
        store = current.store_of_run(run)
        notes_before = with_typed(address_notes.from_browser(notes), press)
        mouse = None if press.get("button") else hover_data
        new_note = _make_note(store, notes_before, area.marked_window(store, marked))
        new_note = new_note or Note(choose_time(store, mouse, selected, view))
        notes_after = with_note(notes_before, new_note)
        if notes_after is None:
            return no_update, no_update, NO_ROOM
        return address_notes.for_browser(notes_after.notes), notes_after.edited_index, None

    @app.callback(
        *changed,
        Output(keys.GOTO, "data", allow_duplicate=True),
        Input(names.NOTED, "data"),
        State(names.NOTES, "data"),
        State(names.VIEW, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def change(clicked: Any, notes: Any, view_data: Any, run_key: Any) -> tuple[Any, ...]:
        """Return the changed notes, the edited one's index, a problem, and a window to go to."""
        notes_before = address_notes.from_browser(notes)
        action = clicked if isinstance(clicked, dict) else {}
        typed_notes = with_typed(notes_before, action)
        notes_after = current.prevent_update_unless(apply_action(typed_notes, action))
        if not address_notes.fits(notes_after.notes):
            return no_update, no_update, NO_ROOM, no_update
        notes_to_write: Any = no_update
        if notes_after.notes != notes_before:
            notes_to_write = address_notes.for_browser(notes_after.notes)
        window_s: Any = no_update
        if action.get("does") == GO:
            window = _window_around(
                current.store_of_run(run_key), view_data, typed_notes[action["number"]]
            )
            window_s = [window.start_ns / NS_PER_SECOND, window.end_ns / NS_PER_SECOND]
        return notes_to_write, notes_after.edited_index, None, window_s

    @app.callback(
        Output(names.NOTE_LIST, "children"),
        Input(names.NOTES, "data"),
        Input(names.NOTE_EDITED, "data"),
    )
    def list_notes(notes: Any, edited: Any) -> list[Component]:
        """Return the list of notes; `edited` is the index of the one that is a text field now."""
        edited_index = edited if isinstance(edited, int) else None
        return lay_out_list(Notes(address_notes.from_browser(notes), edited_index))

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "focus"),
        Input(names.NOTE_EDITED, "data"),
        prevent_initial_call=True,
    )


def _make_note(store: Store, notes: tuple[Note, ...], marked_window: Window | None) -> Note | None:
    """Make a note over the marked (absolute) window; None without any, or if it has one."""
    window = store.window_since_start(marked_window) if marked_window else None
    if window is None or any(window == Window(n.start_ns, n.end_ns or -1) for n in notes):
        return None
    return Note(window.start_ns, window.end_ns)


def with_note(notes: tuple[Note, ...], new_note: Note) -> Notes | None:
    """Put a note, to be written; None where a link has no room for another one."""
    notes_after = Notes((*notes, new_note), edited_index=len(notes))
    return notes_after if address_notes.fits(notes_after.notes) else None


def choose_time(store: Store, hover_data: Any, selected_point: Any, view_data: Any) -> int:
    """Return the time for a note, in ns since the start: at the mouse, the span, or the middle."""
    window, mouse = viewport.read_window(store, view_data), viewport.read_mouse(hover_data)
    position = viewport.read_position(store, selected_point)
    note_ns = (window.start_ns + window.end_ns) // 2
    if mouse and abs(mouse_s := mouse[0]) < NS_PER_SECOND:  # no run has 30 years
        note_ns = round(mouse_s * NS_PER_SECOND)
    elif position:
        note_ns = position.moment_ns - store.run_window.start_ns
    return max(0, min(note_ns, store.run_window.width_ns - 1))


def apply_action(notes: tuple[Note, ...], action: dict[str, Any]) -> Notes | None:
    """Return the notes after a click or a typed text; None where nothing changes."""
    action_name, note_index = action.get("does"), action.get("number")
    if not isinstance(note_index, int) or not 0 <= note_index < len(notes):
        return None
    if action_name == EDIT:
        return Notes(notes, note_index)
    if action_name in {LEAVE, GO}:
        return Notes(notes)
    if action_name == DELETE:
        return Notes((*notes[:note_index], *notes[note_index + 1 :]))
    if action_name == KEEP:
        note = replace(notes[note_index], text=address_notes.clean_text(action.get("text")))
        return Notes((*notes[:note_index], note, *notes[note_index + 1 :]))
    return None


def with_typed(notes: tuple[Note, ...], action: dict[str, Any]) -> tuple[Note, ...]:
    """Return the notes with the text of an open field, which a button closes."""
    field = action.get("kept")
    notes_after = apply_action(notes, field | {"does": KEEP}) if isinstance(field, dict) else None
    return notes_after.notes if notes_after else notes


def _window_around(store: Store, view_data: Any, note: Note) -> Window:
    """Return the window (ns since the start) around a note, as wide as the view, or wider."""
    width_ns, end_ns = viewport.read_window(store, view_data).width_ns, note.end_ns or note.start_ns
    length_ns = end_ns - note.start_ns
    margin_ns = (width_ns - length_ns) // 2
    if margin_ns < 0:
        margin_ns = int(MARGIN_NOTE_LENGTHS * length_ns)
    run_window = Window(start_ns=0, end_ns=store.run_window.width_ns)
    return Window(note.start_ns, end_ns).widen(margin_ns).clamp(run_window)


def lay_out_list(shown: Notes) -> list[Component]:
    """Return a line of the list for each note, in the order of time."""
    note_indexes = sorted(range(len(shown.notes)), key=lambda number: shown.notes[number].start_ns)
    return [
        _lay_out_note(shown.notes[note_index], note_index, edited=note_index == shown.edited_index)
        for note_index in note_indexes
    ]


def _lay_out_note(note: Note, note_index: int, *, edited: bool) -> Component:
    """Return the line of a note: with a field for its text if it is edited, else with buttons."""
    time_text = _time_text(note)
    note_name = note.text or f"note at {time_text}"
    if edited:
        field = dmc.TextInput(
            id=FIELD,
            value=note.text,
            placeholder=f"A note, up to {address_notes.LONGEST_TEXT} letters",
            size="xs",
            **aria(f"text of the note at {time_text}"),
        )
        return html.Span([time_text, field], className="note edited", **_data(KEEP, note_index))
    go, edit, delete = (
        _data(action, note_index) | aria(f"{verb} {note_name}")
        for action, verb in ((GO, "show"), (EDIT, "edit"), (DELETE, "delete"))
    )
    controls = [
        html.Button(time_text, className="note-time", **go),
        html.Span(note.text, className="note-text"),
        html.Button("\N{LOWER RIGHT PENCIL}", **edit),
        html.Button("\N{MULTIPLICATION SIGN}", **delete),
    ]
    return html.Span(controls, className="note")


def _data(action: str, note_index: int) -> dict[str, Any]:
    return {"data-note": json.dumps({"does": action, "number": note_index})}


def _time_text(note: Note) -> str:
    """Describe where a note is: times as the axis has them, which are longer than durations."""
    start = f"{note.start_ns / NS_PER_SECOND:.6g}"
    return (
        f"{start} s" if note.end_ns is None else f"{start}\u2013{note.end_ns / NS_PER_SECOND:.6g} s"
    )
