"""What a request is about: the run that its page shows, and what that run was in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from dash import State
from dash.exceptions import PreventUpdate
from flask import current_app

from tracelens.errors import InvalidArgument
from tracelens_dashboard import ids, text

if TYPE_CHECKING:
    from tracelens_dashboard.runs.catalog import Runs
    from tracelens_dashboard.runs.store import Store


RUNS: Final = "tracelens.runs"  # in the Flask application: Dash shares its pages among all apps
RUN: Final = State(ids.RUN, "data")  # what callbacks hand to `store_of_run`
PATIENCE_S: Final = 30.0
BEFORE_EDITION: Final = "@"  # in what pages hand back, behind the run's key

_Value = TypeVar("_Value")


def prevent_update_unless(value: _Value | None) -> _Value:
    """Return a value; None and False end the request (PreventUpdate), and the page stays."""
    if value is None or value is False:
        raise PreventUpdate
    return value


def run_key_of(run: Any) -> str:
    """Return the key of a run that a page shows, for any edition."""
    return run.partition(BEFORE_EDITION)[0] if isinstance(run, str) else ""


def edition_number_of(run: Any) -> int:
    """Number the reading of a run that a page shows; 0 is the first one."""
    digits = run.partition(BEFORE_EDITION)[2] if isinstance(run, str) else ""
    return int(digits) if digits.isdecimal() else 0


def with_edition(run: str, number: int) -> str:
    """Append an edition to a run's key, as a page hands it back that shows a later reading."""
    return f"{run}{BEFORE_EDITION}{number}"


def runs_of_app() -> Runs:
    """Return all runs of the application that is asked."""
    return cast("Runs", current_app.config[RUNS])


def store_of_run(run: Any) -> Store:
    """Return the run of a request by its key, with or without an edition.

    Raises:
        InvalidArgument: there is no such run, or it is not open any more and takes long to open.
    """
    served_runs, run_key = runs_of_app(), run_key_of(run)
    if served_runs.only_store and not run_key:
        return served_runs.only_store
    entry = served_runs.find_entry(run_key)
    if entry is None:
        raise InvalidArgument("This run is not served any more: choose another one from the list.")
    open_store = served_runs.open_store(entry, PATIENCE_S)
    if open_store is None:
        raise InvalidArgument("This run has to be read again: reload the page to see the progress.")
    return open_store


def find_store(run: Any) -> Store | None:
    """Return the run that a page compares with; None where there is no such run."""
    entry = runs_of_app().find_entry(run)
    return runs_of_app().open_store(entry, PATIENCE_S) if entry else None


def name_run(store: Store) -> str:
    """Name a run among those that are served."""
    entry = runs_of_app().find_entry(store.run_key)
    return text.clean_name(entry.name if entry else store.name)


def describe_size(store: Store) -> str:
    """Return the size of a run in a few words: ranks, shards, steps, duration."""
    shard_count = store.shard_count
    sizes = [
        text.count(len(store.ranks), "rank"),
        text.count(shard_count, "shard") if shard_count else "",
        text.count(store.step_windows.height, "step"),
        text.duration(store.run_window.width_ns),
    ]
    return " · ".join(filter(None, sizes))
