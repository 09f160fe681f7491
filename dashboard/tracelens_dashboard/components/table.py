"""A table that sorts, filters, and can be copied or saved as CSV; assets/tables.js does the last three.

At first it shows the rows that have the names of the selection, if any has.

A number that has a measure travels twice: as a number, in one unit for its column, which is what is
sorted, filtered and saved; and as the text that is read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import html

from tracelens_dashboard.components import fields
from tracelens_dashboard.figures import quantity
from tracelens_dashboard.figures.quantity import Quantity
from tracelens_dashboard.ids import aria

if TYPE_CHECKING:
    from collections.abc import Collection

    from dash.development.base_component import Component

    from tracelens_dashboard.figures.drawing import Rows

READ: Final = " as read"  # behind a column's name: the texts of its numbers
NOT_MEASURED: Final = "-"
DIGITS: Final = 9  # more than anything is measured with
GRID_OPTIONS: Final = {
    "suppressFieldDotNotation": True,  # column names are words, not paths
    "animateRows": False,
    "rowHeight": 32,
    "headerHeight": 34,
    "enableCellTextSelection": True,
    "ensureDomOrder": True,
}


def table(identity: Any, rows: Rows, hidden_columns: Collection[str] = ()) -> Component:
    """Return a table with what finds, copies and saves its rows.

    A callback that answers a click on a row finds hidden columns in its data.
    """
    grid_box = html.Div(grid(identity, rows, hidden_columns), className="grid")
    return html.Div([_tools(), grid_box], className="table")


def grid(identity: Any, rows: Rows, hidden_columns: Collection[str] = ()) -> dag.AgGrid:
    """Return the table alone; its cells are text, never HTML."""
    unit_by_column = _units(rows)
    return dag.AgGrid(
        id=identity,
        rowData=[_cells(row, unit_by_column) for row in rows],
        columnDefs=[column for column in columns(rows) if column["field"] not in hidden_columns],
        defaultColDef={"sortable": True, "resizable": True, "minWidth": 104, "flex": 1},
        dashGridOptions=GRID_OPTIONS,
        style={"height": "100%"},
    )


def columns(rows: Rows) -> list[dict[str, Any]]:
    """Describe a table's columns by the first value of each, as the grid wants it."""
    unit_by_column = _units(rows)
    return [
        _column(name, _first_known_value(rows, name), unit_by_column.get(name))
        for name in (rows or [{}])[0]
    ]


def _column(name: str, value: Any, unit: tuple[float, str] | None) -> dict[str, Any]:
    """Describe a column; `unit` is (its size, its name) for numbers with a measure."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    column: dict[str, Any] = {
        "field": name,
        "headerName": name,
        "filter": "agNumberColumnFilter" if is_number else "agTextColumnFilter",
        "wrapHeaderText": True,
        "autoHeaderHeight": True,
    }
    if is_number:
        column["type"] = "numericColumn"
    if unit:
        text_key = json.dumps(name + READ)
        column["valueFormatter"] = {"function": f"params.data ? params.data[{text_key}] : ''"}
        column["context"] = {"unit": unit[1]}
        column["filterParams"] = {"filterPlaceholder": f"in {unit[1]}"}
    return column


def _first_known_value(rows: Rows, name: str) -> Any:
    return next((row[name] for row in rows if row.get(name) is not None), None)


def _units(rows: Rows) -> dict[str, tuple[float, str]]:
    """Return the unit, (size, name), of each column of numbers with a measure."""
    numbers_by_column: dict[str, list[Quantity]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, Quantity):
                numbers_by_column.setdefault(name, []).append(value)
    return {name: quantity.choose_unit(values) for name, values in numbers_by_column.items()}


def _cells(row: dict[str, Any], unit_by_column: dict[str, tuple[float, str]]) -> dict[str, Any]:
    """Return a row for the browser: numbers in their column's unit, and their texts."""
    cells: dict[str, Any] = dict(row)
    for name, (unit_size, _) in unit_by_column.items():
        value = row.get(name)
        cells[name + READ] = NOT_MEASURED if value is None else str(value)
        if value is not None:
            cells[name] = float(f"{float(value) / unit_size:.{DIGITS}g}")
    return cells


def _tools() -> Component:
    """Return the filter field, and the buttons that copy and save the table."""
    filter_field = dmc.TextInput(
        placeholder="Filter rows", size="xs", className="table-filter", **aria("filter rows")
    )
    copy_button = _button("Copy", "table-copy", "copy the table")
    save_button = _button("CSV", "table-csv", "save the table as CSV")
    note = html.Span(className="table-note", role="status")
    return html.Div([filter_field, note, copy_button, save_button], className="table-tools")


def _button(label: str, name: str, doing: str) -> Component:
    return fields.button(label, size="compact-xs", className=name, fw=500, **aria(doing))
