"""A study as text, JSON and Markdown."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tracelens.model import fmt
from tracelens.reports.lines import COLUMNS, json_text, wrap_sentence
from tracelens.studies.figures import TAGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.studies.figures import Figure, Study

STUDY_FORMAT: Final = "tracelens.study/1"
_HEADINGS: Final = ("", "here", "paper", "is")
DIGITS_SHOWN: Final = 3  # digits: a number has as many [policy]


def to_text(study: Study) -> str:
    """Write a study for a terminal of 80 columns; long names take several lines."""
    lines = [f"Study    {study.name}: {study.paper}"]
    for section in study.sections:
        rows = [_HEADINGS, *map(_cells, section.figures)]
        longest_name, value_width, paper_width, tag_width = (
            max(map(len, column)) for column in zip(*rows, strict=True)
        )
        lines += ["", section.question]
        for name, value, published, tag in rows:
            numbers = f"{value:>{value_width}}  {published:{paper_width}}  {tag}".rstrip()
            name_width = COLUMNS - value_width - paper_width - tag_width - 6  # gaps of two
            *name_lines, last_line = textwrap.wrap(name, name_width) or [""]
            lines += [*name_lines, f"{last_line:{min(longest_name, name_width)}}  {numbers}"]
        lines += wrap_sentence(f"-> {section.answer}", indent="   ")
    lines += ["", *(line for tag in study.tags for line in wrap_sentence(f"{tag}: {TAGS[tag]}"))]
    lines += [line for source in study.sources for line in wrap_sentence(f"- {source}")]
    return "\n".join(lines) + "\n"


def to_json(study: Study) -> str:
    """Write a study for programs."""
    return json_text({"format": STUDY_FORMAT, **asdict(study)})


def to_markdown(study: Study) -> str:
    """Write a study as Markdown."""
    lines = [f"**{study.name}**: {study.paper}"]
    for section in study.sections:
        lines += ["", f"### {section.question}", ""]
        lines += ["| | here | paper | is |", "|---|---:|---|---|"]
        lines += [f"| {' | '.join(_cells(figure))} |" for figure in section.figures]
        lines += ["", section.answer]
    lines += ["", *(f"- *{tag}*: {TAGS[tag]}" for tag in study.tags)]
    return "\n".join([*lines, *(f"- {source}" for source in study.sources)]) + "\n"


FORMATS: Final[dict[str, Callable[[Study], str]]] = {
    "text": to_text,
    "json": to_json,
    "markdown": to_markdown,
}


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    """Return a row of the table, under `_HEADINGS`: name, value, what the paper says, tag."""
    return figure.name, _write_value(figure), figure.published or "", figure.tag


def _write_value(figure: Figure) -> str:
    if figure.unit == "%":
        return fmt.percent(figure.value, digits=1)
    whole_digits = len(str(int(abs(figure.value)))) if abs(figure.value) >= 1 else 0
    decimals = max(DIGITS_SHOWN - whole_digits, 0)
    return f"{figure.value:,.{decimals}f} {figure.unit}".rstrip()
