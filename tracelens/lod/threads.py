"""One rank opened up: a row for each of its threads, and for each depth at which spans lie in others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.lod import pyramid
from tracelens.lod.codes import BLANK, CODES
from tracelens.lod.lanes import Lane, Lanes, in_rows
from tracelens.lod.query import Scene
from tracelens.schema.vocabulary import OWN_KINDS

if TYPE_CHECKING:
    from tracelens.lod.window import Window

MOST_ROWS: Final = 16
# What spans that are no work of the rank's own look like.
_LOOKS: Final = {"wait": "wait", "reduction": "transfer", "ps": "transfer", "step": "idle"}


def opened(spans: pl.DataFrame, names: dict[int, str], rank: int, whole: Window) -> Scene:
    """Make the scene of a rank's recorded spans; `names` are those of its threads.

    Rows beyond the first `MOST_ROWS` are left out.
    """
    kind = pl.col("kind").cast(pl.String)
    other = kind.replace_strict(_LOOKS, default="unknown")
    looks = pl.when(kind.is_in(OWN_KINDS)).then(kind).otherwise(other)
    table = spans.drop_nulls("end_ns").filter(pl.col("end_ns") > pl.col("start_ns"))
    table = table.with_columns(
        part=pl.format("{}/{}", "thread", "depth"),
        code=looks.replace_strict(CODES, return_dtype=pl.UInt8),
    )
    rows = table.select("thread", "depth", "part").unique().sort("thread", "depth").head(MOST_ROWS)
    process = int(spans["process"][0]) if spans.height else 0
    owners = [
        Lane(process, "worker", rank, _label(names, thread, depth, part))
        for thread, depth, part in rows.iter_rows()
    ]
    known = dict(zip(rows["part"], (owner.part for owner in owners), strict=True))
    kept = table.filter(pl.col("part").is_in(list(known)))
    lanes = in_rows(kept.with_columns(pl.col("part").replace_strict(known)), owners)
    return Scene(
        lanes=lanes,
        steps=_one_each(lanes, whole),
        whole=whole,
        step_ns=max(whole.width_ns, 1),
        pyramid=pyramid.colours(lanes, whole),
    )


def _label(names: dict[int, str], thread: int, depth: int, part: str) -> str:
    """Name a row by its thread, where that begins; the rows below it are told apart by their depth."""
    return f"{names.get(thread, part)}" if not depth else f"{names.get(thread, part)} · {depth}"


def _one_each(lanes: Lanes, whole: Window) -> Lanes:
    """Say nothing of steps: one item, the run, in each lane."""
    count = len(lanes)
    numbers = np.zeros(count, np.int32)
    return Lanes(
        lanes=lanes.lanes,
        offsets=np.arange(count + 1),
        starts=np.full(count, whole.start_ns),
        ends=np.full(count, whole.end_ns),
        codes=np.full(count, BLANK, np.uint8),
        steps=numbers,
        names=numbers,
        words=("",),
    )
