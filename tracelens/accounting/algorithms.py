"""How collectives were carried out, as far as it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from tracelens.model.trace import Trace

_READ: Final = ("type", "communicator", "seq", "algorithm")
_COLUMNS: Final[dict[str, pl.DataType]] = {
    "communicator": pl.String(),
    "seq": pl.UInt32(),
    "algorithm": pl.String(),
}


def read_algorithms(trace: Trace) -> pl.DataFrame:
    """Return `algorithm` by `communicator` and `seq`, for calls whose algorithm a rank recorded."""
    uids_by_process: dict[int, list[str]] = {}
    for grid in trace.calls:
        uids_by_process.setdefault(int(grid.processes[0]), []).append(grid.communicator_uid)
    tables = [_read_of_process(trace, process, uids) for process, uids in uids_by_process.items()]
    return pl.concat([pl.DataFrame(schema=_COLUMNS), *tables])


def _read_of_process(trace: Trace, process: int, uids: list[str]) -> pl.DataFrame:
    """Return a row (`_COLUMNS`) for each call of the communicators `uids` with a recorded algorithm."""
    columns = trace.source.read_columns(process, _READ)
    if "algorithm" not in columns or "communicator" not in columns:
        return pl.DataFrame(schema=_COLUMNS)

    algorithms, uid_codes = columns.word_column("algorithm"), columns.number_column("communicator")
    wanted_codes = [code for code, uid in enumerate(columns.communicator_uids) if uid in uids]
    rows = np.flatnonzero(
        (algorithms.codes >= 0) & np.isin(uid_codes, wanted_codes) & columns.is_span
    )
    rows = rows[columns.number_column("seq")[rows] >= 0]
    values_by_column = {
        "communicator": np.array(columns.communicator_uids, object)[uid_codes[rows]],
        "seq": columns.number_column("seq")[rows],
        "algorithm": np.array(algorithms.vocabulary, object)[algorithms.codes[rows]],
    }
    recorded_calls = pl.DataFrame(
        [pl.Series(name, values_by_column[name].tolist(), kind) for name, kind in _COLUMNS.items()]
    )
    return recorded_calls.unique(["communicator", "seq"], keep="first")
