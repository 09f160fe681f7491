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

_BEGIN, _THROUGH, _END = "s", "t", "f"  # phases of a flow, as the format has them
_POINT: Final = ("phase", "number", "at_ns", "category", "name")
_OF_CALL: Final = ("owner", "row", "at_ns", "until_ns", "communicator", "seq", "name")
_OF_REQUEST: Final = ("owner", "row", "at_ns", "until_ns", "request", "served", "name")


@dataclass(frozen=True)
class Point:
    """Where an arrow begins, passes or ends: in a span, at a time in ns; arrows are numbered."""

    phase: str
    arrow_number: int
    time_ns: int
    category: str
    name: str


NO_POINTS: Final[Mapping[int, list[Point]]] = {}


@dataclass(frozen=True)
class Survey:
    """What is known of a selection before it is written.

    Nothing of it is earlier than `origin_ns`; `points_by_process` are the arrows' points, by process and
    then by row of its events.
    """

    origin_ns: int
    points_by_process: Mapping[int, Mapping[int, list[Point]]] = field(default_factory=dict)


def survey(selection: Selection) -> Survey:
    """Read a selection once, process by process, for its earliest time and its arrows."""
    calls, requests, begins_ns = [], [], [selection.origin_ns]
    for owner_index, owner in enumerate(selection.owners):
        events = selection.read_events(owner).with_row_index("row")
        first_ns = events.select(pl.min_horizontal("start_ns", "device_start_ns").min()).item()
        first_sample_ns = selection.read_samples(owner)["start_ns"].min()
        begins_ns += [ns for ns in (first_ns, first_sample_ns) if isinstance(ns, int)]
        spans = _add_times(events.filter(pl.col("type") == "span"), owner_index)
        calls.append(_find_calls(spans))
        requests.append(_find_requests(spans, served=owner.role == "ps"))
    if not calls:
        return Survey(selection.origin_ns)
    call_points = _link_calls(pl.concat(calls))
    request_points = _link_requests(pl.concat(requests), _last_number(call_points))
    points_by_process: dict[int, dict[int, list[Point]]] = {}
    for (owner_index, row), point in _iterate_points(pl.concat([call_points, request_points])):
        points_by_row = points_by_process.setdefault(selection.owners[owner_index].process, {})
        points_by_row.setdefault(row, []).append(point)
    return Survey(min(begins_ns), points_by_process)


def _iterate_points(arrow_points: pl.DataFrame) -> Iterator[tuple[tuple[int, int], Point]]:
    """Yield ((owner's index, row of its events), point) of each row."""
    for owner_index, row, *fields in arrow_points.select("owner", "row", *_POINT).iter_rows():
        yield (owner_index, row), Point(*fields)


def _add_times(spans: pl.DataFrame, owner_index: int) -> pl.DataFrame:
    """Add owner, name, and when each span's work began and ended (`at_ns`, `until_ns`).

    These are times on the device where it was timed there; spans without length are left out.
    """
    is_timed = pl.col("device_duration_ns").is_not_null() & pl.col("stream").is_not_null()
    begin_ns, length_ns = pl.col("device_start_ns"), pl.col("device_duration_ns")
    return spans.with_columns(
        owner=pl.lit(owner_index, pl.Int64),
        row=pl.col("row").cast(pl.Int64),
        at_ns=pl.when(is_timed).then(begin_ns).otherwise("start_ns"),
        until_ns=pl.when(is_timed).then(begin_ns + length_ns).otherwise("end_ns"),
        name=pl.coalesce(pl.col("op", "kind").cast(pl.String)),
    ).filter(pl.col("until_ns").is_null() | (pl.col("until_ns") > pl.col("at_ns")))


def _find_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return calls of collectives, one row each; messages are numbered for each pair of ranks."""
    is_numbered = pl.col("communicator").is_not_null() & pl.col("seq").is_not_null()
    calls = spans.filter(is_numbered, pl.col("op").cast(pl.String).is_in(COLLECTIVES))
    return calls.with_columns(pl.col("communicator").cast(pl.String)).select(_OF_CALL)


def _find_requests(spans: pl.DataFrame, *, served: bool) -> pl.DataFrame:
    of_exchange = pl.col("kind").cast(pl.String).is_in(EXCHANGE_KINDS)
    requests = spans.filter(of_exchange, pl.col("request").is_not_null())
    return requests.with_columns(served=pl.lit(served)).select(_OF_REQUEST)


def _link_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return arrow points, one row per call, of collectives that several processes took part in.

    `calls` has a row per call, with the index of its owner (process) and its begin `at_ns`.
    """
    call_key = ("communicator", "seq")
    ordered_calls = calls.sort(*call_key, "at_ns", "owner").with_columns(
        turn=pl.int_range(pl.len()).over(call_key),  # of the call's arrivals
        owner_count=pl.col("owner").n_unique().over(call_key),
    )
    ordered_calls = ordered_calls.filter(pl.col("owner_count") > 1)
    is_last = pl.col("turn") == pl.len().over(call_key) - 1
    phase = pl.when(pl.col("turn") == 0).then(pl.lit(_BEGIN))
    return ordered_calls.select(
        "owner",
        "row",
        phase=phase.when(is_last).then(pl.lit(_END)).otherwise(pl.lit(_THROUGH)),
        number=(pl.col("turn") == 0).cum_sum().cast(pl.Int64),
        at_ns="at_ns",
        category=pl.lit("collective"),
        name="name",
    )


def _link_requests(requests: pl.DataFrame, last_number: int) -> pl.DataFrame:
    """Return arrow points, one row each, from requests to their service, and from replies back.

    `requests` has a row per span of a request, `served` if a server's. Arrows are numbered from
    `last_number` + 1. An arrow whose end precedes its begin, by unequal clocks, is dropped.
    """
    ordered_requests = requests.sort("request", "at_ns")
    client_spans = ordered_requests.filter(~pl.col("served")).unique(
        "request", keep="first", maintain_order=True
    )
    server_spans = ordered_requests.filter("served").group_by("request", maintain_order=True)
    first_service = server_spans.agg(pl.col("owner", "row", "at_ns").first().name.suffix("_to"))
    last_service = server_spans.agg(pl.col("owner", "row", "at_ns").last())
    request_arrows = client_spans.join(first_service, on="request", maintain_order="left")
    request_arrows = request_arrows.filter(pl.col("at_ns_to") >= pl.col("at_ns"))
    reply_ends = client_spans.with_columns(at_ns=pl.col("until_ns") - 1).select(
        "request", "name", pl.col("owner", "row", "at_ns").name.suffix("_to")
    )
    reply_arrows = last_service.join(reply_ends, on="request", maintain_order="left")
    reply_arrows = reply_arrows.filter(pl.col("at_ns_to") > pl.col("at_ns"))
    return pl.concat(
        [
            _link_pairs(request_arrows, "request", last_number),
            _link_pairs(reply_arrows, "reply", last_number + request_arrows.height),
        ]
    )


def _link_pairs(arrows: pl.DataFrame, category: str, last_number: int) -> pl.DataFrame:
    """Return two points for each arrow, from its columns and to those that end with ``_to``."""
    numbered_arrows = arrows.with_columns(number=pl.int_range(pl.len()) + last_number + 1)

    def points(phase: str, suffix: str) -> pl.DataFrame:
        return numbered_arrows.select(
            owner=f"owner{suffix}",
            row=f"row{suffix}",
            phase=pl.lit(phase),
            number="number",
            at_ns=f"at_ns{suffix}",
            category=pl.lit(category),
            name="name",
        )

    return pl.concat([points(_BEGIN, suffix=""), points(_END, "_to")])


def _last_number(arrows: pl.DataFrame) -> int:
    last_number = arrows["number"].max()
    return last_number if isinstance(last_number, int) else 0
