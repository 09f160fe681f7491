"""Which ranks, steps and names all pages show: a bar at the top of each, and the same in the address."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Input, Output, State, html, no_update
from dash.exceptions import PreventUpdate

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.model.choice import EVERYTHING, Choice, format_ranges, ranges_of
from tracelens_dashboard import ids
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.view import links, row_groups, state
from tracelens_dashboard.view import notes as noted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dash import Dash
    from dash.development.base_component import Component

    from tracelens.model.choice import Ranges
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

RANKS: Final = "selection-ranks"
STEPS: Final = "selection-steps"
GROUP: Final = "selection-group"
NAMES: Final = "selection-names"
WHOLE: Final = "selection-whole"  # assets/timeline.js clicks it when Esc is pressed
MOST_GROUPS: Final = 512
_PLACE: Final = (
    State(ids.GO, "search"),
    State(ids.GO, "pathname"),
    State(names.NOTES, "data", allow_optional=True),
)


def layout(store: Store, view: ViewState, path: str) -> Component:
    """Return the bar for what is shown of a run; names have a field of their own on the timeline."""
    chosen = selection.read(store.run_id)
    choice = chosen.choice if chosen else EVERYTHING
    named = "" if path == links.TIMELINE else view.find
    names_field = _field(NAMES, "names to show, such as a bucket or a layer", view.find, "all")
    fields = [
        html.Span("Ranks", className="fact-name"),
        _field(
            RANKS,
            "ranks to show, such as 0-3,41",
            _typed(choice.ranks),
            f"all {store.every_rank.workers.height:,}",
        ),
        _groups(store),
        html.Span("Steps", className="fact-name"),
        _field(STEPS, "steps to show, such as 0-3,41", _typed(choice.steps), "all"),
        html.Div(
            dmc.Group([html.Span("Names", className="fact-name"), names_field], gap="xs"),
            hidden=path == links.TIMELINE,
        ),
        dmc.Button(
            "Whole run",
            id=WHOLE,
            variant="default",
            size="xs",
            disabled=choice.is_all and not named,
            **aria("show all ranks, steps and names"),
        ),
    ]
    note = _note(choice, named)
    parts = [*fields, html.Span(note, className="fact-name", role="status")] if note else fields
    return html.Div(
        dmc.Group(parts, gap="xs"),
        className="selection selected-part" if note else "selection",
        role="group",
        **aria("selection for all pages"),
    )


def register(app: Dash) -> None:
    """Show another part of the run, on the page that is open."""

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Output(RANKS, "error"),
        Output(STEPS, "error"),
        Input(RANKS, "value"),
        Input(STEPS, "value"),
        Input(NAMES, "value"),
        State(names.SEARCH, "value", allow_optional=True),
        *_PLACE,
        prevent_initial_call=True,
    )
    def narrow(
        ranks: Any, steps: Any, named: Any, searched: Any, *shown: Any
    ) -> tuple[Any, Any, Any]:
        errors = _wrong(ranks=ranks), _wrong(steps=steps)
        if any(errors):
            return no_update, *errors
        choice = Choice.parse(_asked(ranks), _asked(steps))
        sought = state.find_text(named if searched is None else searched)
        return _address(choice, sought, *shown), None, None

    @app.callback(
        Output(RANKS, "value"),
        Input(GROUP, "value"),
        current.RUN,
        prevent_initial_call=True,
    )
    def choose(group: Any, run: Any) -> str:
        known = [ranks for _, ranks in groups(current.store(run))]
        place = int(group) if isinstance(group, str) and group.isdecimal() else len(known)
        if place >= len(known):
            raise PreventUpdate
        return known[place]

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(WHOLE, "n_clicks"),
        *_PLACE,
        prevent_initial_call=True,
    )
    def clear(clicks: Any, *shown: Any) -> str:
        if not clicks:
            raise PreventUpdate
        return _address(EVERYTHING, "", *shown)


def groups(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the hosts, and the stages of a pipeline, of a whole run, each with its ranks."""
    workers = store.every_rank.workers
    for column in row_groups.group_columns(workers):
        for name, ranks in row_groups.ranks_by(workers, column)[:MOST_GROUPS]:
            yield f"{column} {name}", format_ranges(ranges_of(ranks))


def _groups(store: Store) -> Component:
    known = [{"value": str(place), "label": name} for place, (name, _) in enumerate(groups(store))]
    return html.Div(
        dmc.Select(
            id=GROUP,
            data=known,
            placeholder="of a host or stage",
            searchable=True,
            limit=50,
            size="xs",
            w=170,
            **aria("ranks of a host or stage"),
        ),
        hidden=not known,
    )


def _typed(chosen: Ranges | None) -> str:
    return "" if chosen is None else format_ranges(chosen)


def _field(name: str, label: str, value: str, placeholder: str) -> Component:
    return dmc.TextInput(
        id=name,
        value=value,
        placeholder=placeholder,
        debounce=True,  # until Enter, or until it is left
        size="xs",
        w=150,
        **aria(label),
    )


def _note(choice: Choice, named: str) -> str:
    """Return what becomes of what is not shown."""
    sentences = []
    if choice.ranks is not None:
        sentences.append("findings, shares and peers are of all ranks")
    if choice.steps is not None:
        sentences.append("all numbers are of these steps")
    if named:
        sentences.append("tables show rows with these names, where they have any; charts show all")
    return fmt.capital("; ".join(sentences))


def _asked(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _wrong(**asked: Any) -> str | None:
    """Return what is wrong with what was typed into a field; None if nothing is."""
    try:
        Choice.parse(**{name: _asked(value) for name, value in asked.items()})
    except InvalidArgument as error:
        return str(error).partition(": ")[2]
    return None


def _address(choice: Choice, named: str, search: Any, path: Any, notes: Any) -> str:
    """Return where the same page shows another part; window and selected span are of the old one.

    Notes stay as long as the steps do: their times count from the part's begin. Those of an open
    timeline (`notes`) may be newer than those of the address by which it was opened.
    """
    view = state.read(search)
    now = selection.read(view.run)
    if now is None or (now.choice, view.find) == (choice, named):
        raise PreventUpdate
    if now.choice == choice:
        return replace(view, find=named).link(str(path))
    kept = replace(
        view, start_ns=None, end_ns=None, selected=None, opened=None, notes=(), find=named
    )
    if now.choice.steps == choice.steps:
        seen = view.notes if notes is None else noted.of_browser(notes)
        kept = replace(kept, notes=seen)
    return replace(kept, run=now._replace(choice=choice).key).link(str(path))
