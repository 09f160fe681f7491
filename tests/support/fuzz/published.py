"""What was damaged and what became of it, as a table in docs/reliability.md."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish as write
from benchmarks.published import table
from support.fuzz.pieces import pieces, program

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = "reliability.md"
SCRIPT: Final = "python -m support.fuzz --publish"
HEADS: Final = (
    "file",
    "inputs",
    "read",
    "read, with notes",
    "refused",
    "guided by coverage",
    "failures",
)


def publish(journal: Path) -> None:
    """Sum up the journal's lines of this version of the program."""
    became: dict[str, Counter[str]] = {}
    for row in pieces(journal):
        counts = became.setdefault(row["subject"], Counter())
        counts.update(row["became"])
        counts["failures"] += row["failures"]
    if not became:
        sys.exit("The journal has nothing of this version of the program.")
    lines = [
        [
            name,
            f"{sum(counts[key] for key in ('read', 'noted', 'refused', 'failed', 'before a crash')):,}",
            *(f"{counts[key]:,}" for key in ("read", "noted", "refused", "guided", "failures")),
        ]
        for name, counts in became.items()
    ]
    whole = sum(sum(counts.values()) - counts["failures"] for counts in became.values())
    failures = sum(counts["failures"] for counts in became.values())
    sentence = f"{whole:,} inputs by version {program()} of the program: {failures:,} failures."
    write(PAGE, SCRIPT, f"{table('Damaged inputs', HEADS, lines)}\n\n{sentence}")
