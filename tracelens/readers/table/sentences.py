"""How a table's own words stand in sentences: on one line, short, and such that a shell takes them."""

from __future__ import annotations

import shlex

__all__ = ["map_option", "quoted"]

_LONGEST = 60


def quoted(text: str) -> str:
    """Return a text in quotes; what is not printed as itself is escaped."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def map_option(theirs: str, ours: str) -> str:
    """Return the option that says what a column or word of a table is."""
    said = f"{theirs}={ours}"
    return f"--map {shlex.quote(said) if said.isprintable() else quoted(said)}"
