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
    uids_of: dict[int, list[str]] = {}
    for grid in trace.calls:
        uids_of.setdefault(int(grid.processes[0]), []).append(grid.uid)
    parts = [_read_of_process(trace, process, uids) for process, uids in uids_of.items()]
    return pl.concat([pl.DataFrame(schema=_COLUMNS), *parts])


def _read_of_process(trace: Trace, process: int, uids: list[str]) -> pl.DataFrame:
    """Return the algorithm of each call of some communicators that a process recorded one of."""
    columns = trace.source.columns(process, _READ)
    if "algorithm" not in columns or "communicator" not in columns:
        return pl.DataFrame(schema=_COLUMNS)

    words, uid = columns.word_column("algorithm"), columns.number("communicator")
    numbers = [number for number, name in enumerate(columns.uids) if name in uids]
    rows = np.flatnonzero((words.codes >= 0) & np.isin(uid, numbers) & columns.is_span)
    rows = rows[columns.number("seq")[rows] >= 0]
    values = {
        "communicator": np.array(columns.uids, object)[uid[rows]],
        "seq": columns.number("seq")[rows],
        "algorithm": np.array(words.known, object)[words.codes[rows]],
    }
    table = pl.DataFrame(
        [pl.Series(name, values[name].tolist(), kind) for name, kind in _COLUMNS.items()]
    )
    return table.unique(["communicator", "seq"], keep="first")
