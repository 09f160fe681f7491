"""Collectives that pickle objects of Python: the lowercase methods of mpi4py's communicators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracelens.model import fmt
from tracelens.schema.vocabulary import PICKLE

# share of the time of collectives: pickled ones that take less are not reported [policy]
MIN_SHARE_TO_REPORT_PICKLED_CALLS: Final = 0.1
# The methods of mpi4py whose names are not those of their operations.
_METHODS: Final = {"broadcast": "bcast", "all_gather": "allgather", "all_to_all": "alltoall"}


@dataclass(frozen=True)
class PickledCalls:
    """The method of the operation that pickles most, its calls, and the share of all pickled ones.

    The share is of the time that all collectives take.
    """

    method: str
    count: int
    share: float

    @property
    def sentence(self) -> str:
        """What these calls are, and what they cost."""
        return (
            f"comm.{self.method} pickles its objects ({fmt.count(self.count, 'call')}; pickled ones "
            f"take {fmt.percent(self.share)} of the communication): comm.{self.method.capitalize()} "
            "sends arrays as they are."
        )


def find_pickled_calls(calls: pl.DataFrame) -> PickledCalls | None:
    """Return the calls, of a row each, that pickle; None unless they take much of the communication."""
    calls = calls.filter(pl.col("ranks") > 1)
    pickled = calls.filter(pl.col("algorithm") == PICKLE)
    share = float(pickled["wire_ns"].sum()) / max(float(calls["wire_ns"].sum()), 1.0)
    if share < MIN_SHARE_TO_REPORT_PICKLED_CALLS:
        return None
    by_op = pickled.group_by("op").agg(pl.len(), pl.col("wire_ns").sum())
    op, count, _ = by_op.sort("wire_ns", "op").row(-1)
    return PickledCalls(method=_METHODS.get(op, op), count=count, share=share)
