"""Puts what a benchmark measured into a page of the documentation, between the marks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["publish", "published_rows", "table", "with_measured"]

_DOCS: Final = Path(__file__).parents[2] / "docs"
_END: Final = "<!-- end of measured -->"


def publish(page: str, script: str, text: str) -> None:
    """Put what `script` measured into a page of the documentation."""
    path = _DOCS / page
    path.write_text(with_measured(path.read_text(), script, text))


def published_rows(page: str, script: str, title: str) -> list[tuple[str, ...]]:
    """Return the rows of the table of that title that `script` has in a page; none if it has another."""
    rest = (_DOCS / page).read_text().split(_begin(script))[1]
    measured = rest.split(_END, 1)[0]
    if f"### {title}\n" not in measured:
        return []
    rows = [
        line.strip("| ").split(" | ") for line in measured.splitlines() if line.startswith("| ")
    ]
    return [tuple(row) for row in rows[1:]]


def _begin(script: str) -> str:
    return f"<!-- measured: written by {script} -->"


def with_measured(page: str, script: str, text: str) -> str:
    """Return the page with `text` where `script` has its place."""
    begin_mark = _begin(script)
    before, rest = page.split(begin_mark)
    after = rest.split(_END, 1)[1]
    return f"{before}{begin_mark}\n\n{text}\n\n{_END}{after}"


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a titled table in Markdown."""
    head = list(head)
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
