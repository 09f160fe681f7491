"""Arrows between the spans of a selection: who a call was for, and which server answered a request.

The calls of a collective are one arrow, from rank to rank in the order of their arrivals. A request is
one from the worker to the server's first span of it, and the reply one from the server's last span back
to the moment before the worker has it. What ran on a device is pointed at where it ran.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.schema.vocabulary import COLLECTIVES, EXCHANGE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens.exports.selection import Selection

__all__ = ["NO_POINTS", "Point", "Survey", "survey"]

_BEGIN, _THROUGH, _END = "s", "t", "f"  # phases of a flow, as the format has them
_POINT: Final = ("phase", "number", "at_ns", "category", "name")
_OF_CALL: Final = ("owner", "row", "at_ns", "until_ns", "communicator", "seq", "name")
_OF_REQUEST: Final = ("owner", "row", "at_ns", "until_ns", "request", "served", "name")


@dataclass(frozen=True)
class Point:
    """Where an arrow begins, passes or ends: in a span, at a time in ns; arrows are numbered."""

    phase: str
    number: int
    at_ns: int
    category: str
    name: str


NO_POINTS: Final[Mapping[int, list[Point]]] = {}


@dataclass(frozen=True)
class Survey:
    """What is known of a selection before it is written.

    Nothing of it is earlier than `origin_ns`; `points` are the arrows' points, by process and then by
    row of its events.
    """

    origin_ns: int
    points: Mapping[int, Mapping[int, list[Point]]] = field(default_factory=dict)


def survey(chosen: Selection) -> Survey:
    """Read a selection once, process by process, for its begin and its arrows."""
    calls, requests, begins = [], [], [chosen.origin_ns]
    for place, owner in enumerate(chosen.owners):
        events = chosen.events(owner).with_row_index("row")
        first = events.select(pl.min_horizontal("start_ns", "device_start_ns").min()).item()
        sampled = chosen.samples(owner)["start_ns"].min()
        begins += [time for time in (first, sampled) if isinstance(time, int)]
        ends = _with_ends(events.filter(pl.col("type") == "span"), place)
        calls.append(_calls(ends))
        requests.append(_requests(ends, served=owner.role == "ps"))
    if not calls:
        return Survey(chosen.origin_ns)
    arrows = _of_calls(pl.concat(calls))
    numbered = pl.concat([arrows, _of_requests(pl.concat(requests), after=_last(arrows))])
    points: dict[int, dict[int, list[Point]]] = {}
    for (place, row), point in _each(numbered):
        points.setdefault(chosen.owners[place].process, {}).setdefault(row, []).append(point)
    return Survey(min(begins), points)


def _each(numbered: pl.DataFrame) -> Iterator[tuple[tuple[int, int], Point]]:
    for place, row, *facts in numbered.select("owner", "row", *_POINT).iter_rows():
        yield (place, row), Point(*facts)


def _with_ends(spans: pl.DataFrame, place: int) -> pl.DataFrame:
    """Add when the work of each span began and ended, on its device where it was timed there."""
    timed = pl.col("device_duration_ns").is_not_null() & pl.col("stream").is_not_null()
    begun, length = pl.col("device_start_ns"), pl.col("device_duration_ns")
    return spans.with_columns(
        owner=pl.lit(place, pl.Int64),
        row=pl.col("row").cast(pl.Int64),
        at_ns=pl.when(timed).then(begun).otherwise("start_ns"),
        until_ns=pl.when(timed).then(begun + length).otherwise("end_ns"),
        name=pl.coalesce(pl.col("op", "kind").cast(pl.String)),
    ).filter(pl.col("until_ns").is_null() | (pl.col("until_ns") > pl.col("at_ns")))


def _calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of collectives; messages are numbered apart, for each pair of ranks."""
    numbered = pl.col("communicator").is_not_null() & pl.col("seq").is_not_null()
    calls = spans.filter(numbered, pl.col("op").cast(pl.String).is_in(COLLECTIVES))
    return calls.with_columns(pl.col("communicator").cast(pl.String)).select(_OF_CALL)


def _requests(spans: pl.DataFrame, *, served: bool) -> pl.DataFrame:
    of_exchange = pl.col("kind").cast(pl.String).is_in(EXCHANGE_KINDS)
    requests = spans.filter(of_exchange, pl.col("request").is_not_null())
    return requests.with_columns(served=pl.lit(served)).select(_OF_REQUEST)


def _of_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the points of collectives that more than one process of the selection called."""
    call = ("communicator", "seq")
    ordered = calls.sort(*call, "at_ns", "owner").with_columns(
        turn=pl.int_range(pl.len()).over(call), ranks=pl.col("owner").n_unique().over(call)
    )
    ordered = ordered.filter(pl.col("ranks") > 1)
    last = pl.col("turn") == pl.len().over(call) - 1
    phase = pl.when(pl.col("turn") == 0).then(pl.lit(_BEGIN))
    return ordered.select(
        "owner",
        "row",
        phase=phase.when(last).then(pl.lit(_END)).otherwise(pl.lit(_THROUGH)),
        number=(pl.col("turn") == 0).cum_sum().cast(pl.Int64),
        at_ns="at_ns",
        category=pl.lit("collective"),
        name="name",
    )


def _of_requests(requests: pl.DataFrame, after: int) -> pl.DataFrame:
    """Return the points of requests and replies; numbers go on after those that are taken.

    Where clocks are not sure enough to have them in order, there is no arrow.
    """
    ordered = requests.sort("request", "at_ns")
    asked = ordered.filter(~pl.col("served")).unique("request", keep="first", maintain_order=True)
    served = ordered.filter("served").group_by("request", maintain_order=True)
    first = served.agg(pl.col("owner", "row", "at_ns").first().name.suffix("_to"))
    last = served.agg(pl.col("owner", "row", "at_ns").last())
    there = asked.join(first, on="request", maintain_order="left")
    there = there.filter(pl.col("at_ns_to") >= pl.col("at_ns"))
    had = asked.with_columns(at_ns=pl.col("until_ns") - 1).select(
        "request", "name", pl.col("owner", "row", "at_ns").name.suffix("_to")
    )
    back = last.join(had, on="request", maintain_order="left")
    back = back.filter(pl.col("at_ns_to") > pl.col("at_ns"))
    return pl.concat(
        [
            _pairs(there, "request", after),
            _pairs(back, "reply", after + there.height),
        ]
    )


def _pairs(arrows: pl.DataFrame, category: str, after: int) -> pl.DataFrame:
    """Return two points for each arrow, from its columns and to those that end with ``_to``."""
    numbered = arrows.with_columns(number=pl.int_range(pl.len()) + after + 1)

    def points(phase: str, suffix: str) -> pl.DataFrame:
        return numbered.select(
            owner=f"owner{suffix}",
            row=f"row{suffix}",
            phase=pl.lit(phase),
            number="number",
            at_ns=f"at_ns{suffix}",
            category=pl.lit(category),
            name="name",
        )

    return pl.concat([points(_BEGIN, ""), points(_END, "_to")])


def _last(arrows: pl.DataFrame) -> int:
    last = arrows["number"].max()
    return last if isinstance(last, int) else 0
