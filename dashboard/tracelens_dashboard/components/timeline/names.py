"""Names of the timeline's components, and the arguments by which callbacks get what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dash import Input, State

from tracelens_dashboard.runs import current
from tracelens_dashboard.view.viewport import Controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_dashboard.runs.store import Store

GRAPH: Final = "timeline"
PLOT: Final = "timeline-plot"
STRIP: Final = "timeline-strip"
STRIP_PLOT: Final = "timeline-strip-plot"
WINDOW: Final = "timeline-window"
EDITION: Final = "timeline-edition"  # which reading of the run is drawn
CHANGE: Final = "timeline-change"  # elements of the figure that a new view changes
VIEW: Final = "timeline-view"
WIDE: Final = "timeline-wide"  # the plot's width in pixels
TALL: Final = "timeline-tall"  # the room for it in the window, in pixels
OPENED: Final = "timeline-opened"  # processes whose tracks are shown; null = as there is room
TOGGLE: Final = "timeline-toggle"  # assets/tracks.js says there which one is to open or close
ROW: Final = "timeline-row"  # the height of rows that is asked for
GUTTER: Final = "timeline-gutter"
PINS: Final = "timeline-pins"
SORT: Final = "timeline-sort"
PATH: Final = "timeline-path"  # whether the critical path is drawn
NOTE: Final = "timeline-note"
NOTES: Final = "timeline-notes"  # of the user, as addresses hold them
NOTED: Final = "timeline-noted"  # assets/notes.js says there what becomes of which note
NOTE_EDITED: Final = "timeline-note-edited"  # which one has a field for its text
NOTE_LIST: Final = "timeline-note-list"
NOTE_PROBLEM: Final = "timeline-note-problem"
LEGEND: Final = "timeline-legend"
DETAILS: Final = "timeline-details"
POINTED: Final = "timeline-pointed"  # assets/tracks.js puts there which span the panel leads to
SEARCH: Final = "timeline-search"
HIT: Final = "timeline-hit"  # which one of what is found is selected
SCROLL: Final = "timeline-scroll"  # how far down the selected row is
FOUND: Final = "timeline-found"
SELECTED: Final = "timeline-selected"
MEASURED: Final = "timeline-measured"
AREA: Final = "timeline-area"  # what the spans in a marked area come to
SPANS: Final = "timeline-spans"  # the longest of them, one a row

# Of `viewport.Controls`, in its order.
CONTROLS: Final = (
    (VIEW, "data"),
    (PINS, "value"),
    (SORT, "value"),
    (SELECTED, "data"),
    (OPENED, "data"),
    (ROW, "value"),
    (TALL, "data"),
    (WIDE, "data"),
    (PATH, "checked"),
    (NOTES, "data"),
)


def control_arguments(*called_by: str) -> tuple[Input | State, ...]:
    """Return a callback's arguments for all `CONTROLS` and the run; `called_by` ones call it."""
    arguments = [(Input if name in called_by else State)(name, value) for name, value in CONTROLS]
    return (*arguments, current.RUN)


def read_arguments(values: Sequence[Any]) -> tuple[Store, Controls]:
    """Return the run and the timeline's controls from the values of `control_arguments`."""
    *controls, run = values
    return current.store_of_run(run), Controls(*controls)
