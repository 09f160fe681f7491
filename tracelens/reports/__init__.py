"""A `Report` in the formats that people and programs read: siblings with one function, `render`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from tracelens.model.result import Report

__all__ = ["REPORTS", "ReportFormat", "report_format"]

# Each a module `to_NAME` beside this one; only the one asked for is imported.
REPORTS: Final = ("text", "json", "markdown", "html", "prometheus", "otlp")


class ReportFormat(Protocol):
    """A module that turns a report into text."""

    def render(self, report: Report, /) -> str:
        """Return the whole report as text."""


def report_format(name: str) -> ReportFormat:
    """Import the module of a format."""
    return cast("ReportFormat", import_module(f"{__name__}.to_{name}"))
