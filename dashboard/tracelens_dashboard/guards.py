"""What keeps a local dashboard local: hosts, origins, and what the page may load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from flask import abort, request

if TYPE_CHECKING:
    from dash import Dash
    from flask import Response

# Another name for this machine would let a foreign page reach us through its own DNS.
TRUSTED_HOSTS: Final = ("127.0.0.1", "localhost")
READING: Final = {"GET", "HEAD", "OPTIONS"}


def protect(app: Dash) -> None:
    """Refuse foreign hosts and foreign pages; forbid the page to load from elsewhere."""
    app.server.config["TRUSTED_HOSTS"] = list(TRUSTED_HOSTS)

    @app.server.before_request
    def check_origin() -> None:
        if request.method not in READING and not _own(request.headers.get("Origin")):
            abort(403, "This request comes from another page.")

    @app.server.after_request
    def restrict(response: Response) -> Response:
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if response.mimetype == "text/html":
            response.headers["Content-Security-Policy"] = _policy(app)
        return response


def _own(origin: str | None) -> bool:
    """Say whether a page of this server sent it; programs other than browsers send no origin."""
    return origin is None or urlsplit(origin).netloc == request.host


def _policy(app: Dash) -> str:
    scripts = " ".join(sorted(set(app.csp_hashes())))
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self' {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
