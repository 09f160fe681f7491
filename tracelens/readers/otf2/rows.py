"""An OTF2 archive as rows in our words: regions are spans, messages and collectives say with whom.

Source: the OTF2 3.2 manual, "List of all event records" and "List of all definition records". Ranks of
MPI are the positions of locations in the group COMM_LOCATIONS; peers are positions in a communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.readers.otf2.regions import COLLECTIVES, build_kernel_table, build_region_table
from tracelens.readers.otf2.unpack import CODES
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from tracelens.readers.otf2.archive import Archive

_NS: Final = 1_000_000_000
_MOST_NS: Final = 1 << 62
# The years 2000 to 2100.
DATES_NS: Final = range(946_684_800_000_000_000, 4_102_444_800_000_000_000)
_NUMBER_AT_END: Final = re.compile(r"(\d{1,7})\D*$")
_SEND, _RECV, _ISEND, _ISENT, _IRECV_REQUEST, _IRECV, _COLLECTIVE, _REQUESTED, _COMPLETED = range(
    len(CODES)
)
_TYPES_OF_STREAMS: Final = ("ACCELERATOR_STREAM", "GPU")
_INT: Final = pl.Int64()
_ROW: Final = (
    "rank", "start_ns", "end_ns", "kind", "op", "name", "thread", "stream", "step", "host",
    "communicator", "seq", "bytes", "peer", "key",
)  # fmt: skip
# Label, and ranks by position in the communicator (-1 = unknown), by the communicator's number.
Communicators = dict[int, tuple[str, list[int]]]


def find_ranks(definitions: dict[str, Any]) -> dict[int, int]:
    """Return the rank of each location group, by its number: as MPI numbers them, else as names end.

    Devices are of the rank whose process made them. `groups` are by location.
    """
    location_groups = definitions["location_groups"]
    groups, mpi_locations = _find_groups(definitions), definitions["mpi_locations"][:MOST_RANKS]
    rank_by_group = {groups[loc]: rank for rank, loc in enumerate(mpi_locations) if loc in groups}
    if not rank_by_group:
        names = {group: str(name) for group, name, sort, *_ in location_groups if sort == "PROCESS"}
        matches = {group: _NUMBER_AT_END.search(name) for group, name in names.items()}
        number_by_group = {group: int(match[1]) for group, match in matches.items() if match}
        if len(names) > 1 and len({*number_by_group.values()}) == len(names):
            rank_by_group = number_by_group
    for group, _, _, _, maker in location_groups:
        if maker in rank_by_group:
            rank_by_group.setdefault(group, rank_by_group[maker])
    return rank_by_group


def _find_groups(definitions: dict[str, Any]) -> dict[int, int]:
    """Return the number of each location's group, by that of the location."""
    return {location: group for location, _, _, group, _ in definitions["locations"]}


def describe_communicators(
    definitions: dict[str, Any], rank_by_group: dict[int, int]
) -> Communicators:
    """Return label and ranks (-1 = unknown) of each communicator, by number; labels are unique."""
    group_by_location = _find_groups(definitions)
    names = [str(name) for _, name, _ in definitions["communicators"]]
    communicators = {}
    for number, name, locations in definitions["communicators"]:
        is_unique = bool(name) and names.count(str(name)) == 1
        label = str(name) if is_unique else f"{name or 'communicator'} #{number}"
        groups = (group_by_location.get(location, -1) for location in locations)
        communicators[number] = (label, [rank_by_group.get(group, -1) for group in groups])
    return communicators


def build_spans(
    archive: Archive, rank_by_group: dict[int, int], communicators: Communicators
) -> pl.DataFrame:
    """Return the spans of all locations, in `_ROW`; `rank` is null if a location's rank is unknown.

    Regions are spans. Messages and requests outside of their call become spans in flight.
    """
    locations = _build_locations(archive.definitions, rank_by_group)
    regions = build_region_table(archive.definitions["regions"])
    spans = _add_meanings(archive.spans, regions, locations)
    operations = _add_ranks(archive.operations, communicators)
    calls, messages = _split_calls(operations, spans)
    spans = spans.join(calls, on="span", how="left", maintain_order="left")
    is_call = pl.col("op_of_call").is_not_null()
    spans = spans.with_columns(
        kind=pl.when(is_call).then(pl.lit("reduction")).otherwise("kind"),
        op=pl.when(is_call).then("op_of_call").otherwise("op"),
    )
    in_flight = pl.concat([messages, *_requests_in_flight(operations)], how="diagonal")
    in_flight = in_flight.join(locations, on="location", how="left").with_columns(
        kind=pl.lit("reduction"),
        thread=pl.format("{} messages", "thread"),
        stream=pl.lit(None, _INT),
    )
    spans_of_run = _to_ns(pl.concat([spans, in_flight], how="diagonal"), archive.definitions)
    return _number_collectives(spans_of_run, communicators).select(_ROW)


def _build_locations(definitions: dict[str, Any], rank_by_group: dict[int, int]) -> pl.DataFrame:
    """Return one row per location: rank, host, thread, and stream (null on the host)."""
    host_by_group = {group: str(host) for group, _, _, host, _ in definitions["location_groups"]}
    rows, used_threads = [], set()  # used names of threads, each with its group
    stream_counts: Counter[int] = Counter()  # by location group
    for location, name, location_type, group, _ in definitions["locations"]:
        stream = None
        if location_type in _TYPES_OF_STREAMS:
            stream = stream_counts[group]
            stream_counts[group] += 1
        thread = str(name)
        if (group, thread) in used_threads:
            thread = f"{thread} #{location}"
        used_threads.add((group, thread))
        host = host_by_group.get(group) or None
        rows.append((location, rank_by_group.get(group), host, thread, stream))
    schema = {"location": pl.Int64, "rank": pl.Int32, "host": pl.String, "thread": pl.String}
    return pl.DataFrame(rows, schema=schema | {"stream": pl.Int64}, orient="row")


def _add_meanings(
    spans: pl.DataFrame, regions: pl.DataFrame, locations: pl.DataFrame
) -> pl.DataFrame:
    """Add the meaning of each span's region (name, kind, op, step), and where it ran.

    Tables have one row per span, region, and location (thread or stream).
    """
    spans = spans.join(locations, on="location", how="left", maintain_order="left")
    is_on_device = pl.col("stream").is_not_null()
    kernels = build_kernel_table(regions)
    host_spans, device_spans = (
        spans.filter(is_there).join(meanings, on="region", how="left", maintain_order="left")
        for is_there, meanings in ((~is_on_device, regions), (is_on_device, kernels))
    )
    all_spans = pl.concat([host_spans, device_spans], how="diagonal")
    return all_spans.with_columns(pl.col("kind").fill_null("user"), pl.col("name").fill_null("?"))


def _add_ranks(operations: pl.DataFrame, communicators: Communicators) -> pl.DataFrame:
    """Add the label of each operation's communicator (`comm`), and the rank of its peer (`root`)."""
    communicator_labels = pl.DataFrame(
        [(number, label) for number, (label, _) in communicators.items()],
        schema={"comm": pl.Int64, "communicator": pl.String}, orient="row",
    )  # fmt: skip
    peer_ranks = pl.DataFrame(
        [
            (number, position, rank)
            for number, (_, ranks) in communicators.items()
            for position, rank in enumerate(ranks)
            if rank >= 0
        ],
        schema={"comm": pl.Int64, "root": pl.Int64, "peer": pl.Int32}, orient="row",
    )  # fmt: skip
    operations = operations.join(communicator_labels, on="comm", how="left", maintain_order="left")
    return operations.join(peer_ranks, on=["comm", "root"], how="left", maintain_order="left")


def _split_calls(
    operations: pl.DataFrame, spans: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the operations of spans, and the messages that are not those of their call itself.

    Operations have a `code`, the `time` at which they happened and the `span` in which they did. A call
    of MPI_Sendrecv is the receive, as that is what it waits for; its send has a row of its own.
    """
    op_by_code = {_SEND: "send", _RECV: "recv"}
    op = pl.col("code").replace_strict(op_by_code, default=None, return_dtype=pl.String)
    messages = operations.filter(pl.col("code").is_in([*op_by_code])).with_columns(op=op)
    span_facts = spans.select(pl.col("span").cast(_INT), "end", op_of_span="op")
    messages = messages.join(span_facts, on="span", how="left", maintain_order="left")
    is_of_call = (pl.col("op") == pl.col("op_of_span")).fill_null(value=False)
    calls = messages.filter(is_of_call).unique("span", keep="last", maintain_order=True)
    key = ["span", "code", "time"]
    other_messages = messages.join(calls.select(key), on=key, how="anti")
    collectives = (
        operations.filter(pl.col("code") == _COLLECTIVE)
        .with_columns(
            op=pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String),
            peer=pl.lit(None, pl.Int32),
        )
        .drop_nulls("span")
        .unique("span", keep="last", maintain_order=True)
    )
    fact_columns = ("communicator", "bytes", "peer")
    spans_of_calls = pl.concat(
        [
            calls.select("span", *fact_columns, op_of_call="op", key="tag"),
            collectives.select("span", *fact_columns, op_of_call="op", key=pl.lit(None, _INT)),
        ]
    )
    unique_calls = spans_of_calls.unique("span", keep="last").cast({"span": pl.UInt32})
    messages_alone = other_messages.select(
        "location", "op", *fact_columns, name=pl.format("MPI {}", "op"), key="tag", begin="time",
        end=pl.coalesce("end", "time"),
    )  # fmt: skip
    return unique_calls, messages_alone


def _requests_in_flight(operations: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the operations of requests: sends, receives and collectives, from begin to completion."""
    op = pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String)
    collectives = _join_requests(operations, _REQUESTED, _COMPLETED, described_by="end", op=op)
    return [
        _join_requests(operations, _ISEND, _ISENT, described_by="begin", op=pl.lit("send")),
        _join_requests(operations, _IRECV_REQUEST, _IRECV, described_by="end", op=pl.lit("recv")),
        collectives.with_columns(peer=pl.lit(None, pl.Int32)),
    ]


def _join_requests(
    operations: pl.DataFrame, begin_code: int, end_code: int, *, described_by: str, op: pl.Expr
) -> pl.DataFrame:
    """Join begins and ends of requests; one of them, "begin" or "end", describes the operation `op`.

    `operations` has one row per event; begins have `begin_code`, ends `end_code`.
    """
    key = ["location", "request", "turn"]
    begins, ends = (_number_turns(operations, code) for code in (begin_code, end_code))
    descriptions, other_events = (begins, ends) if described_by == "begin" else (ends, begins)
    other_time = "end" if described_by == "begin" else "begin"
    joined = descriptions.rename({"time": described_by}).join(
        other_events.select(*key, pl.col("time").alias(other_time)),
        on=key, how="left", maintain_order="left",
    )  # fmt: skip
    requests = joined.with_columns(op=op, begin=pl.coalesce("begin", "end"))
    return requests.select(
        "location", "communicator", "bytes", "peer", "op", "begin", "end", key="tag",
        name=pl.format("MPI {}", pl.col("op").fill_null("collective")),
    )  # fmt: skip


def _number_turns(operations: pl.DataFrame, code: int) -> pl.DataFrame:
    """Return the operations of a sort; `turn` counts those of the same request."""
    operations_of_code = operations.filter(pl.col("code") == code).drop_nulls("request")
    return operations_of_code.with_columns(turn=pl.int_range(pl.len()).over("location", "request"))


def _to_ns(spans: pl.DataFrame, definitions: dict[str, Any]) -> pl.DataFrame:
    """Turn ticks into nanoseconds: since 1970, where the archive says when it began."""
    ticks_per_second = max(int(definitions["resolution"] or 0), 1)
    realtime_ns = definitions["realtime"] or 0
    origin_ns = realtime_ns if realtime_ns in DATES_NS else 0
    return spans.with_columns(
        start_ns=_ticks_as_ns(pl.col("begin"), ticks_per_second) + origin_ns,
        end_ns=_ticks_as_ns(pl.col("end"), ticks_per_second) + origin_ns,
    )


def _ticks_as_ns(ticks: pl.Expr, ticks_per_second: int) -> pl.Expr:
    """Return ticks as ns, split into whole seconds and a rest to keep all digits; null if too large."""
    if ticks_per_second >= 1 << 62:
        return pl.lit(None, _INT)
    tick_ns = _NS / ticks_per_second
    seconds, rest_ticks = ticks // ticks_per_second, ticks % ticks_per_second
    rest_ns = (rest_ticks.cast(pl.Float64) * tick_ns).round().cast(_INT)
    approximate_ns = ticks.cast(pl.Float64) * tick_ns
    return pl.when(approximate_ns.abs() < _MOST_NS).then(seconds * _NS + rest_ns)


def _number_collectives(spans: pl.DataFrame, communicators: Communicators) -> pl.DataFrame:
    """Add `seq` to collectives: their turn in the communicator, as all members call them in one order.

    It is null where not all members call equally many.
    """
    size_by_label = {label: len({*ranks}) for label, ranks in communicators.values()}
    member_columns = ["communicator", "rank"]
    is_collective = pl.col("op").is_in([*{*COLLECTIVES.values()}])
    calls = spans.with_row_index("row").filter(is_collective, pl.col("communicator").is_not_null())
    calls = calls.sort("start_ns").with_columns(
        turn=pl.int_range(pl.len()).over(member_columns), call_count=pl.len().over(member_columns)
    )
    group_size = pl.col("communicator").replace_strict(size_by_label, default=0, return_dtype=_INT)
    is_even = pl.col("call_count").n_unique() == 1
    is_even &= pl.col("rank").n_unique() == group_size.first()
    calls = calls.filter(is_even.over("communicator"))
    numbers = calls.select("row", seq=pl.col("turn").cast(_INT))
    return spans.with_row_index("row").join(numbers, on="row", how="left", maintain_order="left")
