"""The tables of a report are shown in words, each value with its unit; empty ones are left out."""

import re
from pathlib import Path

from support.runs.analysed import RUNS, report

from tracelens.reports import to_markdown, to_text
from tracelens.reports.tables import SHOWN, make_sections
from tracelens.simulator.synthetic import Scenario

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()


def test_every_value_has_its_unit() -> None:
    """A size, a time and a bandwidth read as such, in the text as in Markdown."""
    found = report(Scenario(ranks=4, steps=60))
    row = r"allreduce\W+4\W+4\.0 MiB\W+120\W+[\d.]+ ms\W+[\d.]+ GB/s\W+\d+ %"
    for text in (to_text.render(found, width=120), to_markdown.render(found)):
        assert re.search(row, text)


def test_empty_tables_are_left_out() -> None:
    """A single rank has no collectives to speak of."""
    titles = {section.title for section in make_sections(report(RUNS["alone"][0]).tables)}
    assert not titles & {SHOWN[name][0] for name in ("bandwidths", "links", "shards", "epochs")}


def test_every_shown_column_is_there() -> None:
    """What is shown is a column of a table that every report has."""
    tables = report(RUNS["healthy"][0]).tables
    for name, (_, columns) in SHOWN.items():
        assert {column for _, column, _ in columns} <= set(tables[name].columns)


def test_every_table_is_described() -> None:
    """Each table and each of its columns stands on the page about reports."""
    for name, table in report(RUNS["healthy"][0]).tables.items():
        assert {word for word in (name, *table.columns) if f"`{word}`" not in PAGE} == set()
