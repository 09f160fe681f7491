"""Who may see a run, and what keeps a dashboard where it belongs: hosts, tokens, origins, policy."""

from __future__ import annotations

import hmac
import secrets
import socket
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from flask import Response, abort, request

from tracelens.errors import InvalidArgument
from tracelens_dashboard.app import posted

if TYPE_CHECKING:
    from dash import Dash

LOOPBACK: Final = "127.0.0.1"
TRUSTED_HOSTS: Final = (LOOPBACK, "localhost", "::1")
WILDCARD_HOSTS: Final = ("0.0.0.0", "::")  # noqa: S104 - served there with a token only
TOKEN_BYTES: Final = 32
SAFE_METHODS: Final = {"GET", "HEAD", "OPTIONS"}
# What the pages themselves send is far below; a longer address or body is no view of ours.
LONGEST_QUERY: Final = 4096
MOST_PARAMETERS: Final = 32
MOST_BYTES: Final = 1 << 20
LOCKED: Final = "This run is shown with its token only: open the address that the terminal printed."


@dataclass(frozen=True)
class Access:
    """Names in `Host` that are answered, and the token to be shown first; None: none is asked for."""

    answered_hosts: tuple[str, ...] = TRUSTED_HOSTS
    token: str | None = None

    @classmethod
    def from_host(cls, host: str, *, token: bool = True) -> Access:
        """Choose who may ask at an address: holders of a fresh token, unless none is wanted.

        Raises:
            InvalidArgument: none is wanted, and others than this machine can reach the address.
        """
        if is_this_machine(host):
            return cls(token=_make_token() if token else None)
        if not token:
            raise InvalidArgument(
                f"Without a token whoever can reach '{host}' would see the run: leave --no-token "
                "out, or --host."
            )
        names = _own_names() if host in WILDCARD_HOSTS else (host,)
        return cls((*TRUSTED_HOSTS, *names), _make_token())

    def make_address(self, host: str, port: int) -> str:
        """Return the address to open; it is a key if it has a token in it."""
        shown_host = self.answered_hosts[len(TRUSTED_HOSTS)] if host in WILDCARD_HOSTS else host
        url_host = f"[{shown_host}]" if ":" in shown_host else shown_host
        return f"http://{url_host}:{port}/" + (f"?token={self.token}" if self.token else "")


def is_this_machine(host: str) -> bool:
    """Return True if an address is reached from this machine only."""
    return host in TRUSTED_HOSTS


def _make_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def _own_names() -> tuple[str, ...]:
    """Return the names other machines call this one by, its address towards the network first."""
    name = socket.gethostname()
    try:
        _, aliases, addresses = socket.gethostbyname_ex(name)
    except OSError:
        aliases, addresses = [], []
    known_names = (*_outward_address(), name, socket.getfqdn(), *aliases, *addresses)
    return tuple(dict.fromkeys(known_name.lower() for known_name in known_names))


def _outward_address() -> tuple[str, ...]:
    """Return the address from which this machine would speak to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of the block that stands in documents only (RFC 5737)
        except OSError:
            return ()
        return (str(probe.getsockname()[0]),)


def protect(app: Dash, access: Access | None = None) -> None:
    """Refuse foreign hosts, foreign pages, strangers and floods; load nothing from elsewhere."""
    allowed = access or Access()
    app.server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES

    @app.server.before_request
    def check() -> Response | None:
        _check_host(allowed.answered_hosts)
        _check_size()
        _check_origin()
        refused = _check_token(allowed.token) if allowed.token else None
        if refused is None:
            posted.check(app)
        return refused

    @app.server.after_request
    def restrict(response: Response) -> Response:
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if response.mimetype == "text/html":
            response.headers["Content-Security-Policy"] = _policy(app)
        return response


def _check_host(hosts: tuple[str, ...]) -> None:
    """Refuse other names than ours; Werkzeug's own check knows no IPv6 address."""
    if urlsplit(f"//{request.host}").hostname not in hosts:
        abort(400)


def _check_size() -> None:
    if len(request.query_string) > LONGEST_QUERY or len(request.args) > MOST_PARAMETERS:
        abort(414, "This address is longer than any view that TraceLens links to.")


def _check_origin() -> None:
    if request.method not in SAFE_METHODS and not _is_own_page(request.headers.get("Origin")):
        abort(403, "This request comes from another page.")


def _is_own_page(origin: str | None) -> bool:
    """Return True if a page of this server sent it; programs other than browsers send no origin."""
    try:
        return origin is None or urlsplit(origin).netloc == request.host
    except ValueError:  # a bracket that does not close
        return False


def _check_token(token: str) -> Response | None:
    """Let in requests with the cookie; set it for the token; tell all others what is missing."""
    if _is_token(request.cookies.get(_cookie(), ""), token):
        return None
    if request.method == "GET" and _is_token(request.args.get("token", ""), token):
        return _welcome(token)
    return Response(LOCKED, 401, mimetype="text/plain")


def _is_token(text: str, token: str) -> bool:
    return hmac.compare_digest(text.encode(errors="backslashreplace"), token.encode())


def _cookie() -> str:
    """Name the cookie by the port: cookies of one machine are shared by all its servers."""
    return f"tracelens-{urlsplit(request.host_url).port or 80}"


def _welcome(token: str) -> Response:
    """Keep the token in a cookie and go on without it in the address.

    A redirect would not do: after a link from elsewhere browsers hold back strict cookies until a page
    of our own asks.
    """
    arguments = request.args.items(multi=True)
    query = urlencode([(name, value) for name, value in arguments if name != "token"])
    page_path = "/" + request.path.lstrip("/\\")  # two slashes would lead to another machine
    redirect_url = escape(f"{page_path}?{query}" if query else page_path)
    redirect = f'<meta http-equiv="refresh" content="0;url={redirect_url}">'
    page = f"<!DOCTYPE html><title>TraceLens</title>{redirect}"
    answer = Response(page, mimetype="text/html")
    answer.set_cookie(_cookie(), token, httponly=True, samesite="Strict", path="/")
    answer.headers["Cache-Control"] = "no-store"
    return answer


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
