"""Lines that several documents share: named facts for a terminal, rows of Markdown tables, JSON."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from tracelens.model.inert import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: Final = 80  # of a terminal
_COLUMNS_OF_NAME: Final = 9
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#])")


def write_named_lines(name: str, sentence: str, max_lines: int | None = None) -> list[str]:
    """Write a name and its sentence for a terminal, with the sentence indented behind the name."""
    return textwrap.wrap(
        f"{name:{_COLUMNS_OF_NAME}}{sentence}",
        COLUMNS,
        subsequent_indent=" " * _COLUMNS_OF_NAME,
        max_lines=max_lines,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def wrap_sentence(sentence: str, indent: str = "  ") -> list[str]:
    """Wrap a sentence for a terminal; all lines but the first are indented."""
    return textwrap.wrap(sentence, COLUMNS, subsequent_indent=indent)


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", clean(text))


def markdown_row(cells: Iterable[str]) -> str:
    """Write a row of a Markdown table; cells are shown as they are."""
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def json_text(document: Any) -> str:
    """Write a document as indented JSON; numbers that are not finite are refused."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
