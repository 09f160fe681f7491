"""Side tables may hold what the columns of a trace can, and nothing beyond."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from tracelens.errors import NotATrace
from tracelens.model.trace import PROCESS_COLUMNS
from tracelens.readers.native.side_checks import check_side
from tracelens.schema.side import Process, Retention, SideTables

SIDE = SideTables(process=Process(rank=0, world=1))


@pytest.mark.parametrize("field", ["rank", "world", "local_rank", "shard"])
def test_the_numbers_of_a_process_fit_their_columns(field: str) -> None:
    def make_side(number: int) -> SideTables:
        numbers: dict[str, Any] = {field: number}
        return replace(SIDE, process=replace(SIDE.process, **numbers))

    check_numbers_fit(field, make_side)


def test_the_number_of_kept_steps_fits_its_column() -> None:
    check_numbers_fit("last_steps", lambda number: replace(SIDE, retention=Retention(last=number)))


def check_numbers_fit(column: str, make_side: Callable[[int], SideTables]) -> None:
    """Check that each number is refused, or fits into its column."""
    refused = []
    for number in (1, 2**20, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1):
        try:
            check_side(make_side(number))
        except NotATrace:
            refused.append(number)
        else:
            pl.Series([number], dtype=PROCESS_COLUMNS[column])
    assert 2**63 - 1 in refused
    assert 1 not in refused
