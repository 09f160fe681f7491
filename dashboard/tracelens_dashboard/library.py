"""The library that draws charts, for which a page would wait longest.

A browser compiles the functions of a script when they are first called, one after the other, on the one
thread that also draws the page. The first line says that all will be called: then it compiles them
while the script arrives, on a thread beside (https://v8.dev/blog/explicit-compile-hints).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import Response
from plotly.offline import get_plotlyjs, get_plotlyjs_version

if TYPE_CHECKING:
    from dash import Dash

PATH: Final = "/plotly.js"
ADDRESS: Final = f"{PATH}?v={get_plotlyjs_version()}"
HINT: Final = "//# allFunctionsCalledOnLoad\n"


def register(app: Dash) -> None:
    """Serve it. Its address has the version, so that a browser asks for it once."""
    app.server.add_url_rule(PATH, "plotly", _library)


def _library() -> Response:
    answer = Response(HINT + get_plotlyjs(), mimetype="text/javascript")
    answer.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    return answer
