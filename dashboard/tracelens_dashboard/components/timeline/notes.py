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
from tracelens_dashboard.view import notes as noted
from tracelens_dashboard.view import viewport

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    f"A link has room for {noted.MOST_NOTES} notes, or fewer long ones: delete one to put another."
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
    kept = [note for note in view.notes if note.start_ns < store.whole.width_ns]
    left_out = view.notes_left_out + len(view.notes) - len(kept)
    one, many = (
        "note of this address is none of this run",
        "notes of this address are none of this run",
    )
    problem = f"{text.count(left_out, one, many)}; left out." if left_out else None
    return [
        html.P(problem, id=names.NOTE_PROBLEM, className="summary", role="status"),
        html.Div(id=names.NOTE_LIST, className="notes-list"),
        dcc.Store(id=names.NOTES, data=noted.for_browser(kept)),
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
        known = pressed if isinstance(pressed, dict) else {}
        if known.get("key") != KEY:
            raise PreventUpdate
        *seen, run = shown
        store, before = current.store(run), with_typed(noted.of_browser(notes), known)
        mouse = None if known.get("button") else hover
        extent = _area(store, marked)
        if extent is None or extent in {(note.start_ns, note.end_ns) for note in before}:
            extent = place(store, mouse, *seen), None
        found = with_note(before, Note(*extent))
        if found is None:
            return no_update, no_update, NO_ROOM
        return noted.for_browser(found.notes), found.edited, None

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
        before, one = noted.of_browser(notes), asked if isinstance(asked, dict) else {}
        known = with_typed(before, one)
        found = changed_by(known, one)
        if found is None:
            raise PreventUpdate
        if not noted.fits(found.notes):
            return no_update, no_update, NO_ROOM, no_update
        after = no_update if found.notes == before else noted.for_browser(found.notes)
        goto: Any = no_update
        if one.get("does") == GO:
            window = _window(current.store(run), view, known[one["number"]])
            goto = [window.start_ns / SECOND, window.end_ns / SECOND]
        return after, found.edited, None, goto

    @app.callback(
        Output(names.NOTE_LIST, "children"),
        Input(names.NOTES, "data"),
        Input(names.NOTE_EDITED, "data"),
    )
    def show(notes: Any, edited: Any) -> list[Component]:
        return listed(Notes(noted.of_browser(notes), edited if isinstance(edited, int) else None))

    app.clientside_callback(
        ClientsideFunction(ids.NAMESPACE, "focus"),
        Input(names.NOTE_EDITED, "data"),
        prevent_initial_call=True,
    )


def with_note(notes: tuple[Note, ...], added: Note) -> Notes | None:
    """Put a note, to be written; None where a link has no room for another one."""
    found = Notes((*notes, added), len(notes))
    return found if noted.fits(found.notes) else None


def place(store: Store, hover: Any, chosen: Any, view: Any) -> int:
    """Return where a note belongs: at the mouse, else the selected span, else the middle of the view."""
    seen, selected = viewport.seen(store, view), viewport.place_of(store, chosen)
    at_ns = _at_mouse(hover)
    if at_ns is None and selected:
        at_ns = selected.at_ns - store.whole.start_ns
    middle = (seen.start_ns + seen.end_ns) // 2
    return max(0, min(middle if at_ns is None else at_ns, store.whole.width_ns - 1))


def _area(store: Store, marked: Any) -> tuple[int, int | None] | None:
    found, origin = area.marked_window(store, marked), store.whole.start_ns
    return (found.start_ns - origin, found.end_ns - origin) if found else None


def _at_mouse(hover: Any) -> int | None:
    place = viewport.mouse(hover)
    return round(place[0] * SECOND) if place and abs(place[0]) < SECOND else None


def changed_by(notes: tuple[Note, ...], asked: dict[str, Any]) -> Notes | None:
    """Return what becomes of the notes by a click or by what was typed; None where nothing does."""
    does, number = asked.get("does"), asked.get("number")
    if not _has(notes, number):
        return None
    if does == EDIT:
        return Notes(notes, number)
    if does in {LEAVE, GO}:
        return Notes(notes)
    if does == DELETE:
        return Notes(tuple(note for i, note in enumerate(notes) if i != number))
    if does == KEEP:
        typed = noted.typed(asked.get("text"))
        return Notes(
            tuple(replace(n, text=typed) if i == number else n for i, n in enumerate(notes))
        )
    return None


def with_typed(notes: tuple[Note, ...], asked: dict[str, Any]) -> tuple[Note, ...]:
    """Return the notes with the text of an open field (`kept`), which a button closes."""
    open_field = asked.get("kept")
    found = changed_by(notes, open_field | {"does": KEEP}) if isinstance(open_field, dict) else None
    return found.notes if found else notes


def _has(notes: Sequence[Note], number: Any) -> bool:
    return isinstance(number, int) and 0 <= number < len(notes)


def _window(store: Store, view: Any, note: Note) -> Window:
    """Bring a note to the middle, as wide as the view is; where it is wider itself, all of it."""
    seen, end = viewport.seen(store, view), note.end_ns or note.start_ns
    beside = (seen.width_ns - (end - note.start_ns)) // 2
    if beside < 0:
        beside = int(AROUND * (end - note.start_ns))
    whole = Window(0, store.whole.width_ns)
    return Window(note.start_ns - beside, end + beside).clamp(whole)


def listed(shown: Notes) -> list[Component]:
    """Return a line of the list for each note, in the order of time."""
    order = sorted(range(len(shown.notes)), key=lambda number: shown.notes[number].start_ns)
    return [_line(shown.notes[number], number, edited=number == shown.edited) for number in order]


def _line(note: Note, number: int, *, edited: bool) -> Component:
    when = _when(note)
    called = note.text or f"note at {when}"
    if edited:
        field = dmc.TextInput(
            id=FIELD,
            value=note.text,
            placeholder=f"A note, up to {noted.LONGEST_TEXT} letters",
            size="xs",
            **aria(f"text of the note at {when}"),
        )
        return html.Span([when, field], className="note edited", **_data(KEEP, number))
    parts = [
        html.Button(when, className="note-time", **_data(GO, number), **aria(f"show {called}")),
        html.Span(note.text, className="note-text"),
        html.Button("\N{LOWER RIGHT PENCIL}", **_data(EDIT, number), **aria(f"edit {called}")),
        html.Button("\N{MULTIPLICATION SIGN}", **_data(DELETE, number), **aria(f"delete {called}")),
    ]
    return html.Span(parts, className="note")


def _data(does: str, number: int) -> dict[str, Any]:
    return {"data-note": json.dumps({"does": does, "number": number})}


def _when(note: Note) -> str:
    """Return where a note is: times as the axis has them, which are longer than durations."""
    start = f"{note.start_ns / SECOND:.6g}"
    return f"{start} s" if note.end_ns is None else f"{start}\u2013{note.end_ns / SECOND:.6g} s"
