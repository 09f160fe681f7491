"""A report as files: in the format that a name's end asks for, and its tables as CSV."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.errors import InvalidArgument, MissingExtra
from tracelens.model.csv_cells import cells
from tracelens.model.display import find_frames
from tracelens.model.fmt import join_words, shown_name
from tracelens.reports import report_format
from tracelens.reports.to_json import to_object

if TYPE_CHECKING:
    import os

    from tracelens.model.result import Report
    from tracelens.model.trace import Trace

FORMATS: Final = {
    ".json": "json",
    ".md": "markdown",
    ".html": "html",
    ".txt": "text",
    ".prom": "prometheus",
    ".otlp": "otlp",
}
_FINDINGS: Final[dict[str, Any]] = {
    "kind": pl.String,
    "category": pl.String,
    "sentence": pl.String,
    "saving": pl.Float64,
    "interval": pl.List(pl.Float64),
    "cost": pl.Float64,
    "slowdown": pl.Float64,
    "confidence": pl.Float64,
    "ranks": pl.List(pl.Int64),
    "hosts": pl.List(pl.String),
    "shards": pl.List(pl.Int64),
    "phase": pl.String,
    "pattern": pl.String,
    "steps": pl.List(pl.Int64),
    "tensor": pl.String,
    "function": pl.String,
    "evidence": pl.String,  # JSON
}


def save(report: Report, path: str | os.PathLike[str], trace: Trace | None = None) -> None:
    """Write a report in the format of the path's suffix; HTML of a run with its trace has charts.

    Raises:
        InvalidArgument: the suffix is of no format, or the file cannot be written.
        MissingExtra: charts are drawn by the dashboard, which is not installed.
    """
    file = Path(path)
    format_name = FORMATS.get(file.suffix.lower())
    if format_name is None:
        raise InvalidArgument(
            f"'{shown_name(file)}' ends in no format of a report: expected {join_words(list(FORMATS))}."
        )
    if trace is not None and format_name == "html":
        text = _write_with_charts(report, trace)
    elif format_name == "text":
        from tracelens.reports import to_text  # noqa: PLC0415 - a terminal library, not before it is needed

        text = to_text.render(report, width=100)
    else:
        text = report_format(format_name).render(report)
    try:
        file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"'{shown_name(file)}' cannot be written ({error}).") from error


def _write_with_charts(report: Report, trace: Trace) -> str:
    try:
        store = import_module("tracelens_dashboard.runs.store").Store.from_trace(trace, report)
        text: str = import_module("tracelens_dashboard.export.report").render(store)
    except ModuleNotFoundError as error:
        raise MissingExtra.from_extra("a page with charts", "dashboard") from error
    return text


def list_tables(report: Report) -> dict[str, pl.DataFrame]:
    """Return tables by name: the findings, those of the report, and those of each analysis.

    The latter are called ``analysis.table``; a report that was read from an index has none of them.
    """
    table_by_name = {"findings": _tabulate_findings(report), **report.tables}
    for analysis, result in report.results.items():
        tables = find_frames(result) if analysis != "kept" else {}  # the report's tables once more
        table_by_name |= {f"{analysis}.{name}": table for name, table in tables.items()}
    return table_by_name


def _tabulate_findings(report: Report) -> pl.DataFrame:
    rows = to_object(report)["findings"]
    findings = [row | {"evidence": json.dumps(row["evidence"])} for row in rows]
    return pl.DataFrame(findings, schema=_FINDINGS)


def save_tables(report: Report, folder: str | os.PathLike[str]) -> list[str]:
    """Write all tables of a report as CSV, and return the names of the files."""
    # Lists are joined by blanks. Raise InvalidArgument if the folder cannot be written to.
    directory, file_names = Path(folder), []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, table in list_tables(report).items():
            cells(_flatten(table)).write_csv(directory / f"{name}.csv")
            file_names.append(f"{name}.csv")
    except OSError as error:
        raise InvalidArgument(
            f"'{shown_name(directory)}' cannot be written to ({error})."
        ) from error
    return file_names


def _flatten(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with cells that CSV can hold: lists as words, structures as JSON."""
    list_columns = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
    struct_columns = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.Struct)]
    return table.with_columns(
        *(pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name in list_columns),
        *(pl.col(name).struct.json_encode() for name in struct_columns),
    )
