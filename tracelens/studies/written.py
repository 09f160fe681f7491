"""A study as text, JSON and Markdown."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.studies.figures import TAGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.studies.figures import Figure, Study

__all__ = ["FORMATS"]

STUDY_FORMAT: Final = "tracelens.study/1"
COLUMNS: Final = 80  # columns: a line is no longer [policy; one decision in text, _explained]
_HEADINGS: Final = ("", "here", "paper", "is")
DIGITS_SHOWN: Final = 3  # digits: a number has as many [policy]


def text(found: Study) -> str:
    """Write a study for a terminal of 80 columns."""
    lines = [f"Study    {found.name}: {found.paper}"]
    for section in found.sections:
        rows = [_HEADINGS, *map(_cells, section.figures)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", section.question]
        for name, value, paper, tag in rows:
            numbers = f"{value:>{widths[1]}}  {paper:{widths[2]}}  {tag}".rstrip()
            room = COLUMNS - widths[1] - widths[2] - widths[3] - 6
            *first, last = textwrap.wrap(name, room) or [""]
            lines += [*first, f"{last:{min(widths[0], room)}}  {numbers}"]
        lines += textwrap.wrap(f"-> {section.answer}", COLUMNS, subsequent_indent="   ")
    lines += ["", *(line for tag in found.tags for line in _explained(tag, TAGS[tag]))]
    lines += [
        line
        for one in found.sources
        for line in textwrap.wrap(f"- {one}", COLUMNS, subsequent_indent="  ")
    ]
    return "\n".join(lines) + "\n"


def as_json(found: Study) -> str:
    """Write a study for programs."""
    return json.dumps({"format": STUDY_FORMAT, **asdict(found)}, indent=2, allow_nan=False) + "\n"


def markdown(found: Study) -> str:
    """Write a study as Markdown."""
    lines = [f"**{found.name}**: {found.paper}"]
    for section in found.sections:
        lines += [
            "",
            f"### {section.question}",
            "",
            "| | here | paper | is |",
            "|---|---:|---|---|",
        ]
        lines += [f"| {' | '.join(_cells(one))} |" for one in section.figures]
        lines += ["", section.answer]
    lines += ["", *(f"- *{tag}*: {TAGS[tag]}" for tag in found.tags)]
    return "\n".join([*lines, *(f"- {one}" for one in found.sources)]) + "\n"


FORMATS: Final[dict[str, Callable[[Study], str]]] = {
    "text": text,
    "json": as_json,
    "markdown": markdown,
}


def _cells(one: Figure) -> tuple[str, str, str, str]:
    return one.name, _value(one), one.published or "", one.tag


def _value(one: Figure) -> str:
    if one.unit == "%":
        return fmt.percent(one.value, 1)
    whole = len(str(int(abs(one.value)))) if abs(one.value) >= 1 else 0
    digits = max(DIGITS_SHOWN - whole, 0)
    return f"{one.value:,.{digits}f} {one.unit}".rstrip()


def _explained(name: str, meaning: str) -> list[str]:
    return textwrap.wrap(f"{name}: {meaning}", COLUMNS, subsequent_indent="  ")
