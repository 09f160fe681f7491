"""What the timeline shows, in a sentence or two: how fine it is, what is left out, where the path is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_dashboard import text
from tracelens_dashboard.figures import path_line

if TYPE_CHECKING:
    from tracelens.lod.query import Picture
    from tracelens_dashboard.figures.frame import Frame

LEVELS: Final = {
    "lateness": "Steps are narrow here: colour says how late a rank was in a step, by its own work. "
    "Zoom in to see what it did.",
    "dominant": "Each pixel shows what took most of its time.",
    "sampled": "Each pixel shows what ran at its moment.",
    "spans": "Every span is drawn; hover or click one.",
}


def note(frame: Frame, picture: Picture) -> str:
    """Say what is drawn, and what is not."""
    most = max(len(band.lanes) for band in frame.plan.bands) if frame.plan.bands else 1
    grouped = f" A row shows the latest of up to {most} ranks." if most > 1 else ""
    hidden = (
        f" {text.count(picture.hidden, 'shorter span is', 'shorter spans are')} not drawn."
        if picture.hidden
        else ""
    )
    path = path_line.sentence(frame, picture)
    return f"{text.count(picture.spans, 'span')} in view. {LEVELS[picture.level]}{grouped}{hidden}{path}"
