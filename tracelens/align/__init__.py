"""Pure functions from `Trace` to `Trace`; the default ones make a raw trace ready for analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens.align import collectives, devices, selection, steps
from tracelens.align.clocks import common

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.model.trace import Trace

# In order: each relies on what those before it filled in.
DEFAULT_TRANSFORMS: Final[tuple[Callable[[Trace], Trace], ...]] = (
    devices.place_on_host,
    collectives.gather_calls,
    common.align,
    steps.divide_into_steps,
    collectives.match_calls,
    selection.select_steps,
)
