"""What was damaged and what became of it, as a table in docs/reliability.md."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish as write
from benchmarks.published import table
from support.fuzz.pieces import every_piece

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
    "program",
)


def publish(journal: Path) -> None:
    """Sum up the journal: of each kind of file, the lines of the last version that damaged it."""
    became: dict[str, Counter[str]] = {}
    version: dict[str, str] = {}
    for row in every_piece(journal):
        if version.get(row["subject"]) != row["program"]:
            version[row["subject"]] = row["program"]
            became[row["subject"]] = Counter()
        became[row["subject"]].update(row["became"])
        became[row["subject"]]["failures"] += row["failures"]
    if not became:
        sys.exit("The journal is empty.")
    lines = [
        [
            name,
            f"{sum(counts[key] for key in ('read', 'noted', 'refused', 'failed', 'before a crash')):,}",
            *(f"{counts[key]:,}" for key in ("read", "noted", "refused", "guided", "failures")),
            version[name],
        ]
        for name, counts in became.items()
    ]
    whole = sum(sum(counts.values()) - counts["failures"] for counts in became.values())
    failures = sum(counts["failures"] for counts in became.values())
    sentence = f"{whole:,} inputs: {failures:,} failures."
    write(PAGE, SCRIPT, f"{table('Damaged inputs', HEADS, lines)}\n\n{sentence}")
