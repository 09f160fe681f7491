"""Downloads: the report of a run and a selection of its spans, addressed as pages are, never by path.

A selection is what the address bar shows: pinned ranks, or all, and the window.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl
from flask import Response, abort, request

from tracelens.errors import TraceLensError
from tracelens.exports import perfetto
from tracelens.exports.selection import Owner, Selection, Size
from tracelens.model.fmt import capital
from tracelens_dashboard import text
from tracelens_dashboard.export import report
from tracelens_dashboard.runs import current
from tracelens_dashboard.view import state, viewport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dash import Dash

    from tracelens_dashboard.runs.store import Store
    from tracelens_dashboard.view.state import ViewState


REPORT: Final = "/export/report"
PERFETTO: Final = "/export/perfetto"
LONGEST_NAME: Final = 80
OUR_PAGES: Final = {None, "none", "same-origin"}  # what browsers say of where a request comes from
MOST_RANKS: Final = 64  # files that are read to say how much it is
OWNER_COLUMNS: Final = ("process", "rank", "host")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def register(app: Dash) -> None:
    """Add both addresses."""
    app.server.add_url_rule(REPORT, "report", _report)
    app.server.add_url_rule(PERFETTO, "perfetto", _perfetto)


def _report() -> Response:
    store, _ = _requested()
    return _file(report.render(store), "text/html", store.name + report.SUFFIX)


def _perfetto() -> Response:
    """Answer with the requested spans as a file for Perfetto, or with the reason for a refusal."""
    store, view = _requested()
    selection = selection_of(store, view)
    size_or_refusal = measure(store, selection)
    if isinstance(size_or_refusal, str):
        return Response(size_or_refusal, 400, mimetype="text/plain")
    content = perfetto.write(selection)
    return _file(content, "application/json", store.name + perfetto.SUFFIX)


def _requested() -> tuple[Store, ViewState]:
    """Return the run and the view of a request from one of our pages."""
    if request.headers.get("Sec-Fetch-Site") not in OUR_PAGES:
        abort(403, "This request comes from another page.")
    view = state.parse(request.args)
    try:
        return current.store_of_run(view.run_key), view
    except TraceLensError as error:
        abort(Response(str(error), 404, mimetype="text/plain"))


def _file(content: str | Iterable[str], mimetype: str, name: str) -> Response:
    file_name = _UNSAFE.sub("-", name)[-LONGEST_NAME:].lstrip(".-")
    answer = Response(content, mimetype=mimetype)
    answer.headers["Content-Disposition"] = f'attachment; filename="{file_name}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer


def selection_of(store: Store, view: ViewState) -> Selection:
    """Return the spans to export: of a view's pinned ranks, or all processes, in its window."""
    window = viewport.window_of_view(store, view).shift(store.run_window.start_ns)
    owners = pl.concat([_owners(store.run.workers, "worker"), _owners(store.run.shards, "ps")])
    pinned_ranks = set(view.pinned_ranks) & set(store.ranks)
    if pinned_ranks:
        owners = owners.filter(pl.col("rank").is_in(pinned_ranks) & (pl.col("role") == "worker"))
    return Selection(
        run_name=store.name,
        owners=tuple(Owner(*row) for row in owners.iter_rows()),
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        origin_ns=store.run_window.start_ns,
        threads=store.run.threads,
        read_process_events=store.spans_of_process,
    )


def selection_sentence(store: Store, selection: Selection) -> str:
    """Return the ranks of a selection, and how long it is."""
    ranks = [owner.rank for owner in selection.owners if owner.role == "worker"]
    has_all_ranks = len(ranks) == len(store.ranks)  # and shards with them
    subject_text = text.count(len(ranks), "rank") if has_all_ranks else text.listing("rank", ranks)
    end_ns = min(selection.end_ns, store.run_window.end_ns)
    return f"{capital(subject_text)}, {text.duration(end_ns - selection.start_ns)}"


def measure(store: Store, selection: Selection) -> Size | str:
    """Return the size of a selection, or the sentence that says why it cannot be exported.

    First the items of the processes' lanes in the window are counted, which needs no file: there is
    at least a span to each few of them.
    """
    if len(selection.owners) > MOST_RANKS:
        count = len(selection.owners)
        return f"These are {count} processes: pin the ranks to export, in the timeline."
    process_ids, lanes = {owner.process for owner in selection.owners}, store.scene.span_lanes
    first_items, end_items = lanes.find_item_ranges(selection.start_ns, selection.end_ns)
    counts_by_lane = zip(lanes.owners, (end_items - first_items).tolist(), strict=True)
    event_count = sum(count for lane, count in counts_by_lane if lane.process in process_ids)
    if event_count <= 4 * perfetto.MOST_EVENTS:
        export_size = perfetto.size(selection)
        event_count = export_size.event_count
        if event_count <= perfetto.MOST_EVENTS:
            return export_size
    return (
        f"These are {event_count:,} events, and viewers open {perfetto.MOST_EVENTS:,} at most: "
        "zoom in, or pin fewer ranks, in the timeline."
    )


def _owners(table: pl.DataFrame, role: str) -> pl.DataFrame:
    return table.select(*OWNER_COLUMNS).select(
        "process", pl.lit(role).alias("role"), "rank", pl.col("host").fill_null("")
    )
