"""docs/tables.md: its example runs as it stands there, and every column is named."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import build_parser
from tracelens.readers.table.naming import COLUMNS, OTHERS, TIMES
from tracelens.readers.words import find_meaning

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_pages_example_has_the_waits_it_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 is in the allreduce for 62 us and waits 50 of them for rank 1, as the page says."""
    (table,), (program,) = blocks("csv"), blocks("python")
    assert "rank 0 is in the allreduce for 62 µs. For 50 µs of these it waits for rank 1." in PAGE
    (tmp_path / "events.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102 - our own page
    assert names["waits"].rows() == [(0, 50_000, 12_000), (1, 0, 12_000)]
    assert names["report"].summary.spans == 8
    assert names["trace"].alignment.method == "same_clock"


def test_commands_of_the_page_parse() -> None:
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "tracelens"
        build_parser().parse_args(arguments)


def test_every_column_is_named() -> None:
    """With its unit where it is a time; and the synonyms named are synonyms."""
    for column in COLUMNS:
        assert f"`{column}`" in PAGE or f"`{column}_ns`" in PAGE, column
    for row in re.findall(r"^\| `(\w+)` \| (`.*?) \|", PAGE, re.MULTILINE):
        column = row[0].removesuffix("_ns")
        known = [column, *(TIMES | OTHERS)[column].split()]
        assert {word for word in re.findall(r"`(\w+)`", row[1]) if word not in known} == set()


def test_every_word_named_is_understood() -> None:
    (sentence,) = re.findall(r"So `bwd`.*?understood", PAGE, re.DOTALL)
    words = re.findall(r"`([^`]+)`", sentence)
    assert len(words) > 5
    assert [word for word in words if find_meaning(word) is None] == []
