"""Notes of the user on the timeline: put, written, found again and deleted; the address keeps them.

Buttons and the field carry `data-note`; assets/notes.js hands what is done with them to the server.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update
from dash.exceptions import PreventUpdate

from tracelens.lod.viewport import Window
from tracelens_dashboard import ids, text
from tracelens_dashboard.components.timeline import area, keys, names
from tracelens_dashboard.figures.timeline.frame import SECOND, Note
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import notes as address_notes
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

KEY: Final = "m"
BUTTON: Final = "note-button"  # assets/notes.js: as the key, but the mouse is on the button
FIELD: Final = "timeline-note-field"
GO, EDIT, DELETE, KEEP, LEAVE = "go", "edit", "delete", "keep", "leave"
AROUND: Final = 0.5  # of a stretch's length, on either side, where it is wider than the window
NO_ROOM: Final = (
    f"A link has room for {address_notes.MOST_NOTES} notes, or fewer long ones: delete one to put "
    "another."
)


class Notes(NamedTuple):
    """All notes, and which of them has a field for its text; null = none."""

    notes: tuple[Note, ...]
    edited: int | None = None


def button() -> Component:
    """Return the button that puts a note."""
    title = (
        "Put a note over the marked area, at the selected span, or in the middle (m: at the mouse)"
    )
    return dmc.Button(
        "Note", id=BUTTON, variant="default", size="compact-sm", fw=500, **aria(title)
    )


def layout(store: Store, view: ViewState) -> list[Component]:
    """Return the list of notes, and what the browser keeps of them."""
    notes = [note for note in view.notes if note.start_ns < store.whole.width_ns]
    left_out = view.notes_left_out + len(view.notes) - len(notes)
    singular = "note of this address is none of this run"
    plural = "notes of this address are none of this run"
    problem = f"{text.count(left_out, singular, plural)}; left out." if left_out else None
    return [
        html.P(problem, id=names.NOTE_PROBLEM, className="summary", role="status"),
        html.Div(id=names.NOTE_LIST, className="notes-list"),
        dcc.Store(id=names.NOTES, data=address_notes.for_browser(notes)),
        dcc.Store(id=names.NOTED),
        dcc.Store(id=names.NOTE_EDITED),
    ]


def register(app: Dash) -> None:
    """Put notes, change them, list them."""
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
    def put(pressed: Any, notes: Any, marked: Any, hover: Any, *shown: Any) -> tuple[Any, ...]:
        press = pressed if isinstance(pressed, dict) else {}
        if press.get("key") != KEY:
            raise PreventUpdate
        *selected_and_view, run = shown
        store, notes_before = current.store(run), with_typed(address_notes.of_browser(notes), press)
        mouse = None if press.get("button") else hover
        window, origin = area.marked_window(store, marked), store.whole.start_ns
        extent = (window.start_ns - origin, window.end_ns - origin) if window else None
        if extent is None or extent in {(note.start_ns, note.end_ns) for note in notes_before}:
            added = Note(choose_time(store, mouse, *selected_and_view))
        else:
            added = Note(*extent)
        notes_after = with_note(notes_before, added)
        if notes_after is None:
            return no_update, no_update, NO_ROOM
        return address_notes.for_browser(notes_after.notes), notes_after.edited, None

    @app.callback(
        *changed,
        Output(keys.GOTO, "data", allow_duplicate=True),
        Input(names.NOTED, "data"),
        State(names.NOTES, "data"),
        State(names.VIEW, "data"),
        current.RUN,
        prevent_initial_call=True,
    )
    def change(asked: Any, notes: Any, view: Any, run: Any) -> tuple[Any, ...]:
        notes_before = address_notes.of_browser(notes)
        action = asked if isinstance(asked, dict) else {}
        typed = with_typed(notes_before, action)
        notes_after = apply_action(typed, action)
        if notes_after is None:
            raise PreventUpdate
        if not address_notes.fits(notes_after.notes):
            return no_update, no_update, NO_ROOM, no_update
        written = (
            no_update
            if notes_after.notes == notes_before
            else address_notes.for_browser(notes_after.notes)
        )
        goto: Any = no_update
        if action.get("does") == GO:
            window = _window_around(current.store(run), view, typed[action["number"]])
            goto = [window.start_ns / SECOND, window.end_ns / SECOND]
        return written, notes_after.edited, None, goto

    @app.callback(
        Output(names.NOTE_LIST, "children"),
        Input(names.NOTES, "data"),
        Input(names.NOTE_EDITED, "data"),
    )
    def show(notes: Any, edited: Any) -> list[Component]:
        return lay_out_list(
            Notes(address_notes.of_browser(notes), edited if isinstance(edited, int) else None)
        )

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "focus"),
        Input(names.NOTE_EDITED, "data"),
        prevent_initial_call=True,
    )


def with_note(notes: tuple[Note, ...], added: Note) -> Notes | None:
    """Put a note, to be written; None where a link has no room for another one."""
    after = Notes((*notes, added), len(notes))
    return after if address_notes.fits(after.notes) else None


def choose_time(store: Store, hover: Any, selected: Any, view: Any) -> int:
    """Locate a note, in ns since the start.

    That is at the mouse, else at the selected span, else in the middle of the view.
    """
    window, point = viewport.read_window(store, view), viewport.read_mouse(hover)
    position = viewport.read_position(store, selected)
    at_ns = (window.start_ns + window.end_ns) // 2
    if point and abs(point[0]) < SECOND:
        at_ns = round(point[0] * SECOND)
    elif position:
        at_ns = position.at_ns - store.whole.start_ns
    return max(0, min(at_ns, store.whole.width_ns - 1))


def apply_action(notes: tuple[Note, ...], action: dict[str, Any]) -> Notes | None:
    """Change the notes by a click or by what was typed; None where nothing changes."""
    does, number = action.get("does"), action.get("number")
    if not isinstance(number, int) or not 0 <= number < len(notes):
        return None
    if does == EDIT:
        return Notes(notes, number)
    if does in {LEAVE, GO}:
        return Notes(notes)
    if does == DELETE:
        return Notes((*notes[:number], *notes[number + 1 :]))
    if does == KEEP:
        note = replace(notes[number], text=address_notes.typed(action.get("text")))
        return Notes((*notes[:number], note, *notes[number + 1 :]))
    return None


def with_typed(notes: tuple[Note, ...], action: dict[str, Any]) -> tuple[Note, ...]:
    """Return the notes with the text of an open field (`kept`), which a button closes."""
    field = action.get("kept")
    after = apply_action(notes, field | {"does": KEEP}) if isinstance(field, dict) else None
    return after.notes if after else notes


def _window_around(store: Store, view: Any, note: Note) -> Window:
    """Bring a note to the middle, as wide as the view is; where it is wider itself, all of it."""
    width_ns, end_ns = viewport.read_window(store, view).width_ns, note.end_ns or note.start_ns
    length_ns = end_ns - note.start_ns
    margin_ns = (width_ns - length_ns) // 2
    if margin_ns < 0:
        margin_ns = int(AROUND * length_ns)
    whole = Window(0, store.whole.width_ns)
    return Window(note.start_ns - margin_ns, end_ns + margin_ns).clamp(whole)


def lay_out_list(shown: Notes) -> list[Component]:
    """Return a line of the list for each note, in the order of time."""
    order = sorted(range(len(shown.notes)), key=lambda number: shown.notes[number].start_ns)
    return [_line(shown.notes[number], number, edited=number == shown.edited) for number in order]


def _line(note: Note, number: int, *, edited: bool) -> Component:
    time_text = _time_text(note)
    name = note.text or f"note at {time_text}"
    if edited:
        field = dmc.TextInput(
            id=FIELD,
            value=note.text,
            placeholder=f"A note, up to {address_notes.LONGEST_TEXT} letters",
            size="xs",
            **aria(f"text of the note at {time_text}"),
        )
        return html.Span([time_text, field], className="note edited", **_data(KEEP, number))
    controls = [
        html.Button(time_text, className="note-time", **_data(GO, number), **aria(f"show {name}")),
        html.Span(note.text, className="note-text"),
        html.Button("\N{LOWER RIGHT PENCIL}", **_data(EDIT, number), **aria(f"edit {name}")),
        html.Button("\N{MULTIPLICATION SIGN}", **_data(DELETE, number), **aria(f"delete {name}")),
    ]
    return html.Span(controls, className="note")


def _data(does: str, number: int) -> dict[str, Any]:
    return {"data-note": json.dumps({"does": does, "number": number})}


def _time_text(note: Note) -> str:
    """Describe where a note is: times as the axis has them, which are longer than durations."""
    start = f"{note.start_ns / SECOND:.6g}"
    return f"{start} s" if note.end_ns is None else f"{start}\u2013{note.end_ns / SECOND:.6g} s"
