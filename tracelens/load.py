"""From a trace folder to a `Trace` that analyses can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.transforms import DEFAULT_TRANSFORMS

if TYPE_CHECKING:
    from tracelens.trace import Trace


def prepare(trace: Trace) -> Trace:
    """Apply the default transforms: one clock, steps, matched collectives."""
    for transform in DEFAULT_TRANSFORMS:
        trace = transform(trace)
    return trace
