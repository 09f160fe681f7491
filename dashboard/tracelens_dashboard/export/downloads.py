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
from tracelens.exports.selection import Owner, Selection
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
    store, view = _requested()
    chosen = selection_of(store, view)
    sentence = refusal(store, chosen)
    amount = None if sentence else perfetto.size(chosen)
    if amount and amount.events > perfetto.MOST_EVENTS:
        sentence = too_many_events(amount.events)
    if sentence:
        return Response(sentence, 400, mimetype="text/plain")
    return _file(perfetto.write(chosen), "application/json", store.name + perfetto.SUFFIX)


def _requested() -> tuple[Store, ViewState]:
    """Return the run and the view of a request from one of our pages."""
    if request.headers.get("Sec-Fetch-Site") not in OUR_PAGES:
        abort(403, "This request comes from another page.")
    view = state.parse(request.args)
    try:
        return current.store(view.run), view
    except TraceLensError as error:
        abort(Response(str(error), 404, mimetype="text/plain"))


def _file(content: str | Iterable[str], mimetype: str, name: str) -> Response:
    safe = _UNSAFE.sub("-", name)[-LONGEST_NAME:].lstrip(".-")
    answer = Response(content, mimetype=mimetype)
    answer.headers["Content-Disposition"] = f'attachment; filename="{safe}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer


def selection_of(store: Store, view: ViewState) -> Selection:
    """Choose what a view shows."""
    seen, origin = viewport.window_of(store, view), store.whole.start_ns
    every = pl.concat([_owners(store.run.workers, "worker"), _owners(store.run.shards, "ps")])
    pinned = set(view.pins) & set(store.ranks)
    if pinned:
        every = every.filter(pl.col("rank").is_in(pinned) & (pl.col("role") == "worker"))
    return Selection(
        run=store.name,
        owners=tuple(Owner(*row) for row in every.iter_rows()),
        start_ns=origin + seen.start_ns,
        end_ns=origin + seen.end_ns,
        origin_ns=origin,
        threads=store.run.threads,
        events_of=store.spans_of,
    )


def selection_sentence(store: Store, chosen: Selection) -> str:
    """Return whose spans it holds, and of how long."""
    names = [owner.rank for owner in chosen.owners if owner.role == "worker"]
    every = len(names) == len(store.ranks)  # and shards with them
    subject = text.count(len(names), "rank") if every else text.listing("rank", names)
    length = text.duration(min(chosen.end_ns, store.whole.end_ns) - chosen.start_ns)
    return f"{capital(subject)}, {length}"


def refusal(store: Store, chosen: Selection) -> str:
    """Return why a selection cannot be exported; empty where nothing is known against it.

    Pieces of the index are counted, which needs no file: there is at least a span to each few of them.
    """
    if len(chosen.owners) > MOST_RANKS:
        return (
            f"These are {len(chosen.owners)} processes: pin the ranks to export, in the timeline."
        )
    wanted = {owner.process for owner in chosen.owners}
    lanes = store.scene.lanes
    first, last = lanes.bounds(chosen.start_ns, chosen.end_ns)
    counts = (last - first).tolist()
    pieces = sum(n for lane, n in zip(lanes.lanes, counts, strict=True) if lane.process in wanted)
    if pieces > 4 * perfetto.MOST_EVENTS:
        return too_many_events(pieces)
    return ""


def too_many_events(events: int) -> str:
    """Return the sentence for more events than viewers open."""
    return (
        f"These are {events:,} events, and viewers open {perfetto.MOST_EVENTS:,} at most: "
        "zoom in, or pin fewer ranks, in the timeline."
    )


def _owners(table: pl.DataFrame, role: str) -> pl.DataFrame:
    return table.select(*OWNER_COLUMNS).select(
        "process", pl.lit(role).alias("role"), "rank", pl.col("host").fill_null("")
    )
