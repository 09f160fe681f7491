"""Says which collective calls of different ranks belong together: by number, or by order.

Numbers (`seq`) count. Where they begin anew in each step, step and number together are the number.
Where there are none, calls are put together by their order within communicator, name and step, and only
if all ranks make equally many of each: such calls have the status ``estimated``. Anything else stays
unmatched.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracelens.readers.table.frames import fitted
from tracelens.readers.table.sentences import quoted
from tracelens.schema.vocabulary import COLLECTIVES
from tracelens.trace import COMMUNICATOR_COLUMNS, Note

__all__ = ["communicators", "match"]

WORLD: Final = "world"
_MOST: Final = 2**32 - 1
_SHOWN: Final = 8
_TWICE: Final = (
    "a rank uses a number twice, so they are not matched and waits in them are unknown: 'seq' must "
    "count a rank's calls."
)
_UNEVEN: Final = (
    "they carry no number and ranks do not make equally many ({uneven}), so they are not matched and "
    "waits in them are unknown: add a column 'seq' that counts each rank's calls."
)
_ORDERED: Final = (
    "they carry no number and are matched by their order within name and step, as all ranks make "
    "equally many; a column 'seq' would make that certain."
)


def match(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[Note]]:
    """Complete `communicator`, `seq` and `status` of the workers' collectives."""
    called = (
        (pl.col("kind") == "reduction")
        & pl.col("op").cast(pl.String).is_in(COLLECTIVES)
        & (pl.col("role") == "worker")
    )
    frame = _completed(frame, called)
    calls = frame.with_row_index("row").filter(called)
    parts = []
    said: dict[str, list[str]] = {}
    for (group,), part in calls.group_by("communicator", maintain_order=True):
        found, problem = _numbered(part)
        parts.append(found)
        said.setdefault(problem, []).append(quoted(str(group)))
    notes = [_note(sentence, groups) for sentence, groups in said.items() if sentence]
    if not parts:
        return frame, notes
    found = pl.concat(parts)
    joined = frame.with_row_index("row").join(found, on="row", how="left", maintain_order="left")
    estimated = pl.when(pl.col("estimated") & (pl.col("status") == "closed"))
    return joined.with_columns(
        seq=pl.when(called).then("number").otherwise("seq"),
        status=estimated.then(pl.lit("estimated")).otherwise(pl.col("status").cast(pl.String)),
    ).drop("row", "number", "estimated"), notes


def communicators(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the communicators that collectives name, with the ranks that call them."""
    members = (
        frame.filter((pl.col("role") == "worker") & pl.col("communicator").is_not_null())
        .group_by("communicator")
        .agg(ranks=pl.col("rank").unique().sort())
        .with_columns(name=pl.col("communicator").cast(pl.String))
    )
    return fitted(members.sort("name"), COMMUNICATOR_COLUMNS)


def _completed(frame: pl.DataFrame, called: pl.Expr) -> pl.DataFrame:
    """Give collectives without a communicator that of all ranks."""
    absent = {"communicator": pl.Categorical(), "seq": pl.Int64()}
    frame = frame.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in absent.items() if name not in frame.columns
    )
    world = pl.when(called).then(pl.lit(WORLD, pl.Categorical()))
    return frame.with_columns(communicator=pl.coalesce("communicator", world))


def _numbered(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return row, number and whether it is estimated, for one communicator; and what to say of it."""
    told = calls.filter(pl.col("seq").is_not_null())
    if told.is_empty():
        return _by_order(calls)
    if not _repeats(told, "seq"):
        large = told.select((pl.col("seq") >= _MOST).any()).item()
        return (_dense(calls, "seq") if large else _kept(calls)), ""
    if not _repeats(told, "step", "seq"):
        return _dense(calls, "step", "seq"), ""
    return _unmatched(calls), _TWICE


def _by_order(calls: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    uneven = _uneven(calls)
    if uneven:
        return _unmatched(calls), _UNEVEN.format(uneven=uneven)
    turn = pl.int_range(pl.len()).over("process", "name", "step")
    found = _dense(calls.with_columns(turn=turn), "step", "name", "turn")
    return found.with_columns(estimated=pl.lit(value=True)), _ORDERED


def _repeats(calls: pl.DataFrame, *key: str) -> bool:
    return bool(calls.select(pl.struct("process", *key).is_duplicated().any()).item())


def _uneven(calls: pl.DataFrame) -> str:
    """Say where ranks make different numbers of calls; empty if nowhere."""
    ranks = calls["process"].n_unique()
    counts = (
        calls.group_by("name", "step", "process", maintain_order=True)
        .len()
        .group_by("name", "step", maintain_order=True)
        .agg(least=pl.col("len").min(), most=pl.col("len").max(), ranks=pl.len())
        .filter((pl.col("least") < pl.col("most")) | (pl.col("ranks") < ranks))
    )
    if counts.is_empty():
        return ""
    first = counts.row(0, named=True)
    least = 0 if first["ranks"] < ranks else first["least"]
    where = f" in step {first['step']}" if first["step"] >= 0 else ""
    return f"{least} to {first['most']} of {quoted(first['name'])}{where}"


def _dense(calls: pl.DataFrame, *key: str) -> pl.DataFrame:
    """Number calls with equal keys alike, in the order of the first rank that makes them."""
    order = (
        calls.sort("process", "start_ns")
        .unique(key, keep="first", maintain_order=True)
        .sort("step", "process", "start_ns", maintain_order=True)
        .with_row_index("number")
    )
    found = calls.join(order.select(*key, "number"), on=key, how="left", nulls_equal=True)
    known = pl.when(pl.col("seq").is_not_null() if "seq" in key else pl.lit(value=True))
    return found.select(
        "row", number=known.then(pl.col("number").cast(pl.Int64)), estimated=pl.lit(value=False)
    )


def _kept(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select("row", number=pl.col("seq").cast(pl.Int64), estimated=pl.lit(value=False))


def _unmatched(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.select("row", number=pl.lit(None, pl.Int64), estimated=pl.lit(value=False))


def _note(sentence: str, groups: list[str]) -> Note:
    listed = ", ".join(groups[:_SHOWN]) + (" and more" if len(groups) > _SHOWN else "")
    return Note(file="", sentence=f"Collectives of {listed}: {sentence}", kind="table")
