"""Pauses of a training by the names that users give to spans: checkpoints and evaluation."""

from __future__ import annotations

import re
from typing import Final

_CHECKPOINT: Final = re.compile(r"checkpoint|\bsav(e|ing)", re.IGNORECASE)
_EVALUATION: Final = re.compile(r"\beval|\bvalid|\btest", re.IGNORECASE)


def pause_by_name(name: str) -> str | None:
    """Return ``checkpoint`` or ``evaluation`` for a span of that name; None for all others."""
    if _CHECKPOINT.search(name):
        return "checkpoint"
    return "evaluation" if _EVALUATION.search(name) else None
