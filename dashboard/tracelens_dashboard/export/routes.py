"""Downloads: the report of a run, and a selection of it; addressed as pages are, never by a path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from flask import Response, abort, request

from tracelens.errors import TraceLensError
from tracelens.exports import perfetto
from tracelens_dashboard import asked, state
from tracelens_dashboard.export import report, selection

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dash import Dash

    from tracelens_dashboard.state import ViewState
    from tracelens_dashboard.store import Store

REPORT: Final = "/export/report"
PERFETTO: Final = "/export/perfetto"
LONGEST_NAME: Final = 80
OUR_PAGES: Final = {None, "none", "same-origin"}  # what browsers say of where a request comes from
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def register(app: Dash) -> None:
    """Add both addresses."""
    app.server.add_url_rule(REPORT, "report", _report)
    app.server.add_url_rule(PERFETTO, "perfetto", _perfetto)


def _report() -> Response:
    store, _ = _asked()
    return _file(report.render(store), "text/html", store.name + report.SUFFIX)


def _perfetto() -> Response:
    store, view = _asked()
    chosen = selection.of_view(store, view)
    sentence = selection.too_much(store, chosen)
    amount = None if sentence else perfetto.size(chosen)
    if amount and amount.events > perfetto.MOST_EVENTS:
        sentence = selection.refused(amount.events)
    if sentence:
        return Response(sentence, 400, mimetype="text/plain")
    return _file(perfetto.write(chosen), "application/json", store.name + perfetto.SUFFIX)


def _asked() -> tuple[Store, ViewState]:
    """Return the run and the view of a request from one of our pages."""
    if request.headers.get("Sec-Fetch-Site") not in OUR_PAGES:
        abort(403, "This request comes from another page.")
    view = state.parse(request.args)
    try:
        return asked.store(view.run), view
    except TraceLensError as error:
        abort(Response(str(error), 404, mimetype="text/plain"))


def _file(content: str | Iterable[str], mimetype: str, name: str) -> Response:
    safe = _UNSAFE.sub("-", name)[-LONGEST_NAME:].lstrip(".-")
    answer = Response(content, mimetype=mimetype)
    answer.headers["Content-Disposition"] = f'attachment; filename="{safe}"'
    answer.headers["Cache-Control"] = "no-store"
    return answer
