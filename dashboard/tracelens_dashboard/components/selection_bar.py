"""Which ranks, steps and names all pages show: a bar at the top of each, and the same in the address."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.model.choice import EVERYTHING, Choice, format_ranges, to_ranges
from tracelens_dashboard import ids
from tracelens_dashboard.components import fields
from tracelens_dashboard.components.timeline import names
from tracelens_dashboard.ids import aria
from tracelens_dashboard.runs import current, selection
from tracelens_dashboard.view import links, row_groups, state
from tracelens_dashboard.view import notes as address_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dash.development.base_component import Component

    from tracelens_dashboard.figures.timeline.frame import Note
    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState

RANKS: Final = "selection-ranks"
STEPS: Final = "selection-steps"
GROUP: Final = "selection-group"
NAMES: Final = "selection-names"
WHOLE: Final = "selection-whole"  # assets/timeline.js clicks it when Esc is pressed
MOST_GROUPS: Final = 512
PAGE: Final = (
    State(ids.GO, "search"),
    State(ids.GO, "pathname"),
    State(names.NOTES, "data", allow_optional=True),
)


def layout(store: Store, view: ViewState, path: str) -> Component:
    """Return the bar of the page at `path`; names have a field of their own on the timeline."""
    run_selection = selection.read(store.run_key)
    choice = run_selection.choice if run_selection else EVERYTHING
    is_timeline = path == links.TIMELINE
    searched_name = "" if is_timeline else view.searched_name
    all_ranks_text = f"all {store.run_of_all_ranks.workers.height:,}"
    ranks_text, steps_text = (
        format_ranges(ranges) if ranges is not None else ""
        for ranges in (choice.rank_ranges, choice.step_ranges)
    )
    names_label = "names to show, such as a bucket or a layer"
    names_field = fields.text_input(NAMES, names_label, "all", value=view.searched_name, w=150)
    note = _describe_selection(choice, searched_name)
    controls = [
        html.Span("Ranks", className="fact-name"),
        fields.text_input(
            RANKS, "ranks to show, such as 0-3,41", all_ranks_text, value=ranks_text, w=150
        ),
        _lay_out_groups(store),
        html.Span("Steps", className="fact-name"),
        fields.text_input(STEPS, "steps to show, such as 0-3,41", "all", value=steps_text, w=150),
        html.Div(
            dmc.Group([html.Span("Names", className="fact-name"), names_field], gap="xs"),
            hidden=is_timeline,
        ),
        fields.button(
            "Whole run",
            WHOLE,
            disabled=choice.is_whole_run and not searched_name,
            **aria("show all ranks, steps and names"),
        ),
        *([html.Span(note, className="fact-name", role="status")] if note else []),
    ]
    return html.Div(
        dmc.Group(controls, gap="xs"),
        className="selection selected-part" if note else "selection",
        role="group",
        **aria("selection for all pages"),
    )


def register(app: Dash) -> None:
    """Show another selection of the run, on the page that is open."""

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Output(RANKS, "error"),
        Output(STEPS, "error"),
        Input(RANKS, "value"),
        Input(STEPS, "value"),
        Input(NAMES, "value"),
        State(names.SEARCH, "value", allow_optional=True),
        *PAGE,
        prevent_initial_call=True,
    )
    def narrow(
        ranks: Any, steps: Any, names_typed: Any, timeline_search: Any, *page: Any
    ) -> tuple[Any, Any, Any]:
        """Return the address of the typed selection, or the errors of both fields."""
        errors = _find_error(ranks=ranks), _find_error(steps=steps)
        if any(errors):
            return no_update, *errors
        choice = Choice.parse(_read_field(ranks), _read_field(steps))
        typed_name = names_typed if timeline_search is None else timeline_search
        return _address(choice, state.read_searched_name(typed_name), *page), None, None

    @app.callback(
        Output(RANKS, "value"), Input(GROUP, "value"), current.RUN, prevent_initial_call=True
    )
    def choose_group(group: Any, run_key: Any) -> str:
        """Return the ranks of the chosen group, given by its number."""
        numbered_groups = enumerate(groups(current.store_of_run(run_key)))
        ranks_by_number = {str(number): ranks for number, (_, ranks) in numbered_groups}
        return current.prevent_update_unless(ranks_by_number.get(str(group)))

    @app.callback(
        Output(ids.GO, "href", allow_duplicate=True),
        Input(WHOLE, "n_clicks"),
        *PAGE,
        prevent_initial_call=True,
    )
    def clear(clicks: Any, *page: Any) -> str:
        """Return the address of the same page for the whole run."""
        current.prevent_update_unless(bool(clicks))
        return _address(EVERYTHING, "", *page)


def groups(store: Store) -> Iterator[tuple[str, str]]:
    """Yield (name, ranks as ranges) of each host, and stage of a pipeline, of a whole run."""
    workers = store.run_of_all_ranks.workers
    for column in row_groups.group_columns(workers):
        for name, ranks in row_groups.ranks_by(workers, column)[:MOST_GROUPS]:
            yield f"{column} {name}", format_ranges(to_ranges(ranks))


def _lay_out_groups(store: Store) -> Component:
    """Return the field that selects the ranks of a host or stage; hidden without hosts or stages."""
    numbered_names = [(str(index), name) for index, (name, _) in enumerate(groups(store))]
    options = {"placeholder": "of a host or stage", "searchable": True, "limit": 50, "w": 170}
    data = [{"value": value, "label": label} for value, label in numbered_names]
    field = dmc.Select(
        id=GROUP, data=data, size="xs", **options, **aria("ranks of a host or stage")
    )
    return html.Div(field, hidden=not numbered_names)


def _describe_selection(choice: Choice, searched_name: str) -> str:
    """Return a sentence about what the selection leaves out; empty for the whole run."""
    clauses = []
    if choice.rank_ranges is not None:
        clauses.append("findings, shares and peers are of all ranks")
    if choice.step_ranges is not None:
        clauses.append("all numbers are of these steps")
    if searched_name:
        clauses.append("tables show rows with these names, where they have any; charts show all")
    return fmt.capital("; ".join(clauses))


def _read_field(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _find_error(**typed: Any) -> str | None:
    """Describe what is wrong with the text typed into a field; None if nothing is."""
    try:
        Choice.parse(**{name: _read_field(value) for name, value in typed.items()})
    except InvalidArgument as error:
        return str(error).partition(": ")[2]
    return None


def _address(choice: Choice, searched_name: str, address_query: Any, path: Any, notes: Any) -> str:
    """Link to the same page for another selection; window and selected span are of the old one.

    Notes stay as long as the steps do: their times count from the begin of these. Those of an open
    timeline (`notes`) may be newer than those of the address by which it was opened.
    """
    view = state.read(address_query)
    run_selection = current.prevent_update_unless(selection.read(view.run_key))
    current.prevent_update_unless(
        (run_selection.choice, view.searched_name) != (choice, searched_name)
    )
    if run_selection.choice == choice:
        return replace(view, searched_name=searched_name).make_link(str(path))
    kept_notes: tuple[Note, ...] = ()
    if run_selection.choice.step_ranges == choice.step_ranges:
        kept_notes = view.notes if notes is None else address_notes.from_browser(notes)
    new_key = run_selection._replace(choice=choice).address_key
    cleared = replace(view, start_ns=None, end_ns=None, selected_point=None, opened_row_keys=None)
    return replace(
        cleared, run_key=new_key, searched_name=searched_name, notes=kept_notes
    ).make_link(str(path))
