"""What goes over the wire: compressed, and kept by browsers for as long as it stays the same.

Scripts and styles are compressed once, when they are first asked for: a server's own stay as they are
while it runs. Answers are compressed anew, and quickly.

The library that draws charts is served apart, since a page would wait for it longest. A browser
compiles the functions of a script when they are first called, one after the other, on the one thread
that also draws the page. The first line that is sent promises that all will be called: then it
compiles them while the script arrives, on another thread (https://v8.dev/blog/explicit-compile-hints).
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, request

from tracelens_dashboard import chart_library

if TYPE_CHECKING:
    from dash import Dash

LIBRARY_PATH: Final = "/plotly.js"
LIBRARY_ADDRESS: Final = f"{LIBRARY_PATH}?v={chart_library.VERSION}"
COMPILE_HINT: Final = "//# allFunctionsCalledOnLoad\n"
KEPT: Final = "private, max-age=31536000, immutable"
LEAST_BYTES: Final = 1024
# zlib's, for what is compressed once, and each time: level 6 takes twice as long as 4, for 5 % less.
COMPRESSION_LEVEL: Final = 4
QUICK_COMPRESSION_LEVEL: Final = 1
COMPRESSED_TYPES: Final = {
    "application/javascript",
    "application/json",
    "image/svg+xml",
    "text/css",
    "text/html",
    "text/javascript",
}
STATIC_PATHS: Final = ("/assets/", "/_dash-component-suites/", LIBRARY_PATH)


def register(app: Dash) -> None:
    """Serve the library that draws charts, and compress all answers."""
    app.server.add_url_rule(LIBRARY_PATH, "plotly", _library)
    _compress(app.server)


def _library() -> Response:
    """Return the library; its address has the version: a browser asks for it once."""
    answer = Response(COMPILE_HINT + chart_library.source(), mimetype="text/javascript")
    answer.headers["Cache-Control"] = KEPT
    return answer


def _compress(server: Flask) -> None:
    """Compress all answers that are worth it; those to requests for static files once."""
    packed_by_key: dict[tuple[str, str], bytes] = {}  # by path, and tag or length

    @server.after_request
    def compress(response: Response) -> Response:
        """Compress an answer's body with gzip, if the browser takes it and it is worth it."""
        if not _compressible(response):
            return response
        response.vary.add("Accept-Encoding")
        if not request.accept_encodings["gzip"]:
            return response
        response.direct_passthrough = False
        body = response.get_data()
        if len(body) < LEAST_BYTES:
            return response
        if request.method == "GET" and request.path.startswith(STATIC_PATHS):
            cache_key = (request.path, response.get_etag()[0] or str(len(body)))
            packed_body = packed_by_key.get(cache_key) or packed_by_key.setdefault(
                cache_key, gzip.compress(body, COMPRESSION_LEVEL, mtime=0)
            )
        else:
            packed_body = gzip.compress(body, QUICK_COMPRESSION_LEVEL, mtime=0)
        response.set_data(packed_body)
        response.headers["Content-Encoding"] = "gzip"
        return response


def _compressible(response: Response) -> bool:
    return (
        response.status_code == 200
        and response.mimetype in COMPRESSED_TYPES
        and "Content-Encoding" not in response.headers
        and "Content-Range" not in response.headers
    )
