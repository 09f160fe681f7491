"""A report is written in the format that its name ends in, and its tables as CSV."""

import json
from pathlib import Path

import polars as pl
import pytest
from support.runs.analysed import RUNS, report, trace
from support.tiers import mark_slow

from tracelens.errors import InvalidArgument
from tracelens.reports import REPORTS, report_format, schema, to_otlp
from tracelens.reports.saving import FORMATS, list_tables

SLOW = RUNS["slow rank"][0]


def test_every_format_has_an_end() -> None:
    assert set(FORMATS.values()) == set(REPORTS)


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_end_of_the_name_is_the_format(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(to_otlp, "time_ns", lambda: 5)
    file = tmp_path / f"report{suffix}"
    report(SLOW).save(file)
    text = file.read_text(encoding="utf-8")
    assert "Rank 2 is a straggler" in " ".join(text.split())
    if suffix != ".txt":  # which is as wide as the terminal otherwise
        assert text.rstrip() == report_format(FORMATS[suffix]).render(report(SLOW)).rstrip()


def test_what_is_saved_is_the_report(tmp_path: Path) -> None:
    """JSON keeps to the schema and is what `to_dict` returns; Markdown is what `to_markdown` does."""
    report(SLOW).save(tmp_path / "a.json")
    report(SLOW).save(str(tmp_path / "a.md"))
    loaded = json.loads((tmp_path / "a.json").read_text())
    assert schema.find_problems(loaded) == []
    assert loaded == json.loads(json.dumps(report(SLOW).to_dict()))
    assert (tmp_path / "a.md").read_text().rstrip() == report(SLOW).to_markdown().rstrip()


def test_with_its_trace_the_page_has_charts(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    report(SLOW).save(tmp_path / "plain.html")
    report(SLOW).save(tmp_path / "charts.html", trace=trace(SLOW))
    assert "<script" not in (tmp_path / "plain.html").read_text()
    assert 'id="chart-0"' in (tmp_path / "charts.html").read_text()


@pytest.mark.parametrize("name", ["report.pdf", "report"])
def test_an_unknown_end_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"expected .* \.txt, \.prom and \.otlp"):
        report(SLOW).save(tmp_path / name)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        report(SLOW).save(tmp_path / "file" / "report.json")
    with pytest.raises(InvalidArgument, match="cannot be written to"):
        report(SLOW).save_tables(tmp_path / "file")


@pytest.mark.parametrize("run", mark_slow(RUNS, quick=("slow rank", "hot shard", "alone")))
def test_tables_are_csv(run: str, tmp_path: Path) -> None:
    """Each table of any run with its rows and columns; findings among them."""
    run_report = report(RUNS[run][0])
    names = run_report.save_tables(tmp_path / "tables")
    assert names == [f"{name}.csv" for name in list_tables(run_report)]
    assert {path.name for path in (tmp_path / "tables").iterdir()} == set(names)
    for name, frame in list_tables(run_report).items():
        read = pl.read_csv(tmp_path / "tables" / f"{name}.csv", infer_schema=False)
        assert read.columns == frame.columns
        assert read.height == frame.height


def test_cells_that_are_lists_are_joined(tmp_path: Path) -> None:
    report(RUNS["slow host"][0]).save_tables(tmp_path)
    (row,) = pl.read_csv(tmp_path / "findings.csv", infer_schema=False).head(1).to_dicts()
    assert row["ranks"] == "4 5 6 7"
    assert json.loads(row["evidence"])
