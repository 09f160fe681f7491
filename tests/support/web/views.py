"""Reads a link as the page that it leads to would."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from tracelens_dashboard.view.state import ViewState, parse


def view_of(link: str | None) -> ViewState:
    """Return the view that a link shows; there must be one."""
    assert link is not None
    return parse(dict(parse_qsl(urlsplit(link).query)))
