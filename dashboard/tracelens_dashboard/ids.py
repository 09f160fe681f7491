"""Names of components: those that more than one module refers to, and those for screen readers."""

from __future__ import annotations

from typing import Any, Final

SCHEME: Final = "scheme"  # the light/dark switch; its `computedColorScheme` says what is shown
SHELL: Final = "shell"
BURGER: Final = "burger"
HELP_BUTTON: Final = "help-button"
HELP: Final = "help"
ERROR_NOTICE: Final = "trouble"
RUN: Final = "shown-run"  # in every page: the id of the run it shows
BODY: Final = "page-body"
HEADING: Final = "run"
PICKER: Final = "run-picker"
SIDEBAR: Final = "sidebar"
GO: Final = "go"  # setting its `href` leads to another page

NAMESPACE: Final = "tracelens"  # of the browser-side functions in assets/clientside.js


def part(chart: str, name: str) -> dict[str, str]:
    """Name a part of a chart's card: graph, plot, summary, grid, switch."""
    return {"chart": chart, "part": name}


def aria(label: str) -> dict[str, Any]:
    """Return the property that names a component."""
    return {"aria-label": label}
