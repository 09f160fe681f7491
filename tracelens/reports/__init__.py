"""A `Report` in the formats that people and programs read: siblings with one function, `render`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tracelens.reports import to_json, to_markdown, to_text

if TYPE_CHECKING:
    from tracelens.model.result import Report

__all__ = ["REPORTS", "ReportFormat"]


class ReportFormat(Protocol):
    """A module that turns a report into text."""

    def render(self, report: Report, /) -> str:
        """Return the whole report as text."""


REPORTS: Final[dict[str, ReportFormat]] = {
    "text": to_text,
    "json": to_json,
    "markdown": to_markdown,
}
