"""Gathers events as columns: each kind of span once in words, its occurrences as arrays of times."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.model.trace import EVENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from benchmarks.labelled.setting import Times

WORLD: Final = "labelled-world"
_NUMBERS: Final = ("seq", "bytes", "bucket", "peer", "request", "queue_depth")


@dataclass(frozen=True)
class What:
    """What all occurrences of a span have in common."""

    kind: str
    name: str
    op: str | None = None
    role: str = "worker"
    thread: int = 0
    depth: int = 1
    communicator: str | None = None
    shard: int | None = None


class Ledger:
    """All events of a run, in true time; arrays broadcast to the shape of `start`."""

    def __init__(self) -> None:
        self._words: list[What] = []
        self._parts: list[dict[str, npt.NDArray[np.int64]]] = []

    def note(
        self,
        what: What,
        start: Times,
        end: Times,
        where: Mapping[str, Times | int],
        **numbers: Times | int,
    ) -> None:
        """Add every occurrence of a span; `where` holds process, rank, step and more such columns."""
        columns = {"start_ns": start, "end_ns": end, **where, **numbers}
        arrays = {
            name: np.broadcast_to(np.asarray(value, np.int64), start.shape).ravel()
            for name, value in columns.items()
        }
        arrays["what"] = np.full(start.size, len(self._words))
        self._words.append(what)
        self._parts.append(arrays)

    def frame(self) -> pl.DataFrame:
        """Return the events by process and time, in the columns of a trace."""
        names = ("start_ns", "end_ns", "process", "rank", "step", "what", *_NUMBERS)
        arrays = {
            name: np.concatenate([_column(part, name) for part in self._parts]) for name in names
        }
        span_kinds = pl.DataFrame([asdict(what) for what in self._words], infer_schema_length=None)
        order = np.lexsort(
            (span_kinds["depth"].to_numpy()[arrays["what"]], arrays["start_ns"], arrays["process"])
        )
        columns = {name: values[order] for name, values in arrays.items()}
        numbers = pl.DataFrame({name: columns[name] for name in names if name != "what"})
        absent = [pl.when(pl.col(name) >= 0).then(name).alias(name) for name in _NUMBERS]
        common = span_kinds.with_columns(
            pl.lit(value).alias(name) for name, value in (("type", "span"), ("status", "closed"))
        )
        cast = common.select(pl.col(name).cast(EVENT_COLUMNS[name]) for name in common.columns)
        gathered = cast.select(pl.all().gather(columns["what"]))
        joined = numbers.with_columns(absent).hstack(gathered.get_columns())
        return joined.select(
            pl.col(name).cast(kind) if name in joined.columns else pl.lit(None, kind).alias(name)
            for name, kind in EVENT_COLUMNS.items()
        )


def _column(part: dict[str, npt.NDArray[np.int64]], name: str) -> npt.NDArray[np.int64]:
    return part[name] if name in part else np.full(len(part["what"]), -1)
