"""A table's numbers are numbers, in one unit for a column, and read as sentences do."""

import pytest

from tracelens_dashboard.components.table import READ, columns, grid
from tracelens_dashboard.figures import quantity

ROWS = [
    {"name": "a", "calls": 3, "lasted": quantity.time(135_000), "peak": quantity.share(0.61)},
    {"name": "b", "calls": 20, "lasted": quantity.time(48_400), "peak": None},
    {"name": "c", "calls": 100, "lasted": quantity.time(952_000), "peak": quantity.share(0.004)},
]


def rows_as_sent() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = grid("rows", ROWS).rowData
    return rows


def test_they_sort_by_how_much_they_are() -> None:
    """Not by their first letters: 135 µs, 48.4 µs, 952 µs."""
    ordered = sorted(rows_as_sent(), key=lambda row: str(row["lasted"]).zfill(9))
    assert [row["lasted" + READ] for row in ordered] == ["48.4 µs", "135 µs", "952 µs"]
    assert [row["lasted"] for row in ordered] == [48.4, 135.0, 952.0]


def test_a_column_says_its_unit_to_who_filters_or_saves() -> None:
    """That in which its largest number has digits before the point."""
    columns_by_name = {column["field"]: column for column in columns(ROWS)}
    assert columns_by_name["lasted"]["context"] == {"unit": "µs"}
    assert columns_by_name["peak"]["context"] == {"unit": "%"}
    assert (
        columns_by_name["calls"]["filter"]
        == columns_by_name["lasted"]["filter"]
        == "agNumberColumnFilter"
    )
    assert columns_by_name["name"]["filter"] == "agTextColumnFilter"
    assert "context" not in columns_by_name["calls"]


def test_what_was_not_measured_is_no_number() -> None:
    """It is neither zero nor a word that sorts among numbers."""
    row = rows_as_sent()[1]
    assert row["peak"] is None
    assert row["peak" + READ] == "-"


def test_a_column_whose_first_number_is_missing_is_one_of_numbers() -> None:
    """Rows come in any order."""
    found = {column["field"]: column for column in columns(ROWS[1:])}
    assert found["peak"]["type"] == "numericColumn"


@pytest.mark.parametrize(
    ("made", "read"),
    [
        (quantity.time(2_930_000), "2.93 ms"),
        (quantity.size(24 << 20), "24.0 MiB"),
        (quantity.bandwidth(11.8), "11.8 GB/s"),
        (quantity.share(0.61), "61 %"),
        (quantity.change(-0.125), "-12.5 %"),
    ],
)
def test_a_quantity_reads_as_in_a_sentence(made: quantity.Quantity, read: str) -> None:
    """And counts as the number that it is."""
    assert str(made) == f"{made}" == read
    assert made + 0.0 == float(made)


def test_no_rows_have_no_columns() -> None:
    """Nothing was recorded of it."""
    assert columns([]) == []
