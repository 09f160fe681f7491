"""Puts what a benchmark measured into a page of the documentation, between the marks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["publish", "table", "with_measured"]

_DOCS: Final = Path(__file__).parents[2] / "docs"
_END: Final = "<!-- end of measured -->"


def publish(page: str, script: str, text: str) -> None:
    """Put what `script` measured into a page of the documentation."""
    path = _DOCS / page
    path.write_text(with_measured(path.read_text(), script, text))


def with_measured(page: str, script: str, text: str) -> str:
    """Return the page with `text` where `script` has its place."""
    begin = f"<!-- measured: written by {script} -->"
    before, rest = page.split(begin)
    after = rest.split(_END, 1)[1]
    return f"{before}{begin}\n\n{text}\n\n{_END}{after}"


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a titled table in Markdown."""
    head = list(head)
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
