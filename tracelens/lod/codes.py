"""Palette indexes: the small numbers that stand for a category, or a degree of lateness, in a pixel."""

from __future__ import annotations

from typing import Final

from tracelens.analyses.phases import CATEGORIES

BLANK: Final = 0  # nothing there: the page shows through
SHARD_OPS: Final = ("receive", "aggregate", "apply", "reply")
STACKS: Final = ("stack", "next_stack")  # sampled code; another one than before it
LABELS: Final = (*CATEGORIES, *SHARD_OPS, *STACKS)
CODES: Final = {label: 1 + index for index, label in enumerate(LABELS)}

# A pixel that is a category for a part of its time only is fainter: code + shade * SHADE.
SHADE: Final = 32
SHADES: Final = 4

# Lateness is a ramp of levels; a higher index is a later rank, so the worst of many is their maximum.
FIRST_LEVEL: Final = SHADE * SHADES
LEVELS: Final = 24  # the eye tells no more apart, and noise packs well


def label_of(code: int) -> str:
    """Return the category, or the shard's operation, that a palette index stands for."""
    return LABELS[code % SHADE - 1]
