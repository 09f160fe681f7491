"""An OTF2 archive as rows in our words: regions are spans, messages and collectives say with whom.

Source: the OTF2 3.2 manual, "List of all event records" and "List of all definition records". Ranks of
MPI are the positions of locations in the group COMM_LOCATIONS; peers are positions in a communicator.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.readers.otf2.regions import COLLECTIVES, on_streams, region_table
from tracelens.readers.otf2.unpack import CODES
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from tracelens.readers.otf2.archive import Archive

_NS: Final = 1_000_000_000
_MOST_NS: Final = 1 << 62
EPOCH_NS: Final = (946_684_800_000_000_000, 4_102_444_800_000_000_000)  # the years 2000 to 2100
_NUMBER: Final = re.compile(r"(\d{1,7})\D*$")
_SEND, _RECV, _ISEND, _ISENT, _IRECV_REQUEST, _IRECV, _COLLECTIVE, _REQUESTED, _COMPLETED = range(
    len(CODES)
)
_DEVICES: Final = ("ACCELERATOR_STREAM", "GPU")
_INT: Final = pl.Int64()
_ROW: Final = (
    "rank", "start_ns", "end_ns", "kind", "op", "name", "thread", "stream", "step", "host",
    "communicator", "seq", "bytes", "peer", "key",
)  # fmt: skip
Groups = dict[int, tuple[str, list[int]]]  # name and ranks of communicators by number, -1 = unknown


def process_ranks(facts: dict[str, Any]) -> dict[int, int]:
    """Return the rank of each location group: as MPI numbers them, else as their names end."""
    group_of = {location[0]: location[3] for location in facts["locations"]}
    members = enumerate(facts["ranks"][:MOST_RANKS])
    ranks = {group_of[location]: rank for rank, location in members if location in group_of}
    processes = [group for group in facts["groups"] if group[2] == "PROCESS"]
    if not ranks:
        matches = {group[0]: _NUMBER.search(str(group[1])) for group in processes}
        numbers = {group: int(match[1]) for group, match in matches.items() if match}
        if len(processes) > 1 and len({*numbers.values()}) == len(processes):
            ranks = numbers
    for number, _, _, _, maker in facts["groups"]:  # devices are of the process that made them
        if maker in ranks:
            ranks.setdefault(number, ranks[maker])
    return ranks


def communicators(facts: dict[str, Any], ranks: dict[int, int]) -> Groups:
    """Return name and ranks of each communicator; names that are not unique get their number."""
    group_of = {location[0]: location[3] for location in facts["locations"]}
    names = [str(name) for _, name, _ in facts["comms"]]
    groups = {}
    for number, name, members in facts["comms"]:
        is_unique = bool(name) and names.count(str(name)) == 1
        label = str(name) if is_unique else f"{name or 'communicator'} #{number}"
        groups[number] = (label, [ranks.get(group_of.get(place, -1), -1) for place in members])
    return groups


def rows_of(archive: Archive, ranks: dict[int, int], groups: Groups) -> pl.DataFrame:
    """Return the rows of all locations; rank is null where it is not known of a location."""
    locations = _location_table(archive.facts, ranks)
    regions = region_table(archive.facts["regions"])
    spans = _with_meaning(archive.spans, regions, locations)
    operations = _with_ranks(archive.operations, groups)
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
    rows = _in_nanoseconds(pl.concat([spans, in_flight], how="diagonal"), archive.facts)
    return _number_collectives(rows, groups).select(_ROW)


def _location_table(facts: dict[str, Any], ranks: dict[int, int]) -> pl.DataFrame:
    """Return rank, thread or stream, and host of each location."""
    hosts = {group[0]: str(group[3]) for group in facts["groups"]}
    rows, threads = [], set()
    streams: Counter[int] = Counter()  # by location group
    for number, name, sort, group, _ in facts["locations"]:
        stream = None
        if sort in _DEVICES:
            stream = streams[group]
            streams[group] += 1
        thread = str(name)
        if (group, thread) in threads:
            thread = f"{thread} #{number}"
        threads.add((group, thread))
        rows.append((number, ranks.get(group), hosts.get(group) or None, thread, stream))
    schema = {"location": pl.Int64, "rank": pl.Int32, "host": pl.String, "thread": pl.String}
    return pl.DataFrame(rows, schema=schema | {"stream": pl.Int64}, orient="row")


def _with_meaning(
    spans: pl.DataFrame, regions: pl.DataFrame, locations: pl.DataFrame
) -> pl.DataFrame:
    """Add the meaning of regions, and where they ran."""
    located = spans.join(locations, on="location", how="left", maintain_order="left")
    on_device = pl.col("stream").is_not_null()
    tables = [
        located.filter(is_there).join(meanings, on="region", how="left", maintain_order="left")
        for is_there, meanings in ((~on_device, regions), (on_device, on_streams(regions)))
    ]
    rows = pl.concat(tables, how="diagonal")
    return rows.with_columns(pl.col("kind").fill_null("user"), pl.col("name").fill_null("?"))


def _with_ranks(operations: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    """Replace communicators by their names, and peers within them by ranks."""
    names = pl.DataFrame(
        [(number, name) for number, (name, _) in groups.items()],
        schema={"comm": pl.Int64, "communicator": pl.String}, orient="row",
    )  # fmt: skip
    peers = pl.DataFrame(
        [
            (number, position, rank)
            for number, (_, members) in groups.items()
            for position, rank in enumerate(members)
            if rank >= 0
        ],
        schema={"comm": pl.Int64, "root": pl.Int64, "peer": pl.Int32}, orient="row",
    )  # fmt: skip
    return operations.join(names, on="comm", how="left", maintain_order="left").join(
        peers, on=["comm", "root"], how="left", maintain_order="left"
    )


def _split_calls(
    operations: pl.DataFrame, spans: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the operations of spans, and the messages that are not those of their call itself.

    A call of MPI_Sendrecv is the receive, as that is what it waits for; its send has a row of its own.
    """
    words = {_SEND: "send", _RECV: "recv"}
    messages = operations.filter(pl.col("code").is_in([_SEND, _RECV])).with_columns(
        op=pl.col("code").replace_strict(words, default=None, return_dtype=pl.String)
    )
    op_of_span = spans.select("span", "end", op_of_span="op").with_columns(
        pl.col("span").cast(_INT)
    )
    messages = messages.join(op_of_span, on="span", how="left", maintain_order="left")
    is_of_call = (pl.col("op") == pl.col("op_of_span")).fill_null(value=False)
    calls = messages.filter(is_of_call).unique("span", keep="last", maintain_order=True)
    other_messages = messages.join(
        calls.select("span", "code", "time"), on=["span", "code", "time"], how="anti"
    )
    collectives = (
        operations.filter(pl.col("code") == _COLLECTIVE)
        .with_columns(
            op=pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String),
            peer=pl.lit(None, pl.Int32),
        )
        .drop_nulls("span")
        .unique("span", keep="last", maintain_order=True)
    )
    facts = ("communicator", "bytes", "peer")
    spans_of_calls = pl.concat(
        [
            calls.select("span", *facts, op_of_call="op", key="tag"),
            collectives.select("span", *facts, op_of_call="op", key=pl.lit(None, _INT)),
        ]
    )
    unique_calls = spans_of_calls.unique("span", keep="last").cast({"span": pl.UInt32})
    messages_alone = other_messages.select(
        "location", "op", *facts, name=pl.format("MPI {}", "op"), key="tag", begin="time",
        end=pl.coalesce("end", "time"),
    )  # fmt: skip
    return unique_calls, messages_alone


def _requests_in_flight(operations: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the operations of requests: sends, receives and collectives, from begin to completion."""
    collective = pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String)
    requests = _join_requests(operations, _REQUESTED, _COMPLETED, "end", collective)
    return [
        _join_requests(operations, _ISEND, _ISENT, "begin", pl.lit("send")),
        _join_requests(operations, _IRECV_REQUEST, _IRECV, "end", pl.lit("recv")),
        requests.with_columns(peer=pl.lit(None, pl.Int32)),
    ]


def _join_requests(
    operations: pl.DataFrame, begin_code: int, end_code: int, described_by: str, op: pl.Expr
) -> pl.DataFrame:
    """Join begins and ends of requests; one of them, "begin" or "end", describes the operation."""
    key = ["location", "request", "turn"]
    begins, ends = (_turns(operations, code) for code in (begin_code, end_code))
    described, other_events = (begins, ends) if described_by == "begin" else (ends, begins)
    other_time = "end" if described_by == "begin" else "begin"
    joined = described.rename({"time": described_by}).join(
        other_events.select(*key, pl.col("time").alias(other_time)),
        on=key, how="left", maintain_order="left",
    )  # fmt: skip
    rows = joined.with_columns(op=op, begin=pl.coalesce("begin", "end"))
    return rows.select(
        "location", "communicator", "bytes", "peer", "op", "begin", "end", key="tag",
        name=pl.format("MPI {}", pl.col("op").fill_null("collective")),
    )  # fmt: skip


def _turns(operations: pl.DataFrame, code: int) -> pl.DataFrame:
    """Return the operations of a sort; `turn` counts those of the same request."""
    of_code = operations.filter(pl.col("code") == code).drop_nulls("request")
    return of_code.with_columns(turn=pl.int_range(pl.len()).over("location", "request"))


def _in_nanoseconds(rows: pl.DataFrame, facts: dict[str, Any]) -> pl.DataFrame:
    """Turn ticks into nanoseconds: since 1970, where the archive says when it began."""
    ticks_per_second = max(int(facts["resolution"] or 0), 1)
    realtime_ns = facts["realtime"] or 0
    origin_ns = realtime_ns if EPOCH_NS[0] <= realtime_ns < EPOCH_NS[1] else 0
    return rows.with_columns(
        start_ns=_ticks_as_ns(pl.col("begin"), ticks_per_second) + origin_ns,
        end_ns=_ticks_as_ns(pl.col("end"), ticks_per_second) + origin_ns,
    )


def _ticks_as_ns(ticks: pl.Expr, ticks_per_second: int) -> pl.Expr:
    if ticks_per_second >= 1 << 62:
        return pl.lit(None, _INT)
    tick_ns = _NS / ticks_per_second
    seconds, rest = ticks // ticks_per_second, ticks % ticks_per_second
    rest_ns = (rest.cast(pl.Float64) * tick_ns).round().cast(_INT)
    approximate_ns = ticks.cast(pl.Float64) * tick_ns
    return pl.when(approximate_ns.abs() < _MOST_NS).then(seconds * _NS + rest_ns)


def _number_collectives(rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    """Number collectives, which all members call in the same order, where they call equally many."""
    sizes = {name: len({*members}) for name, members in groups.values()}
    member = ["communicator", "rank"]
    is_collective = pl.col("op").is_in([*{*COLLECTIVES.values()}])
    calls = rows.with_row_index("row").filter(is_collective, pl.col("communicator").is_not_null())
    calls = calls.sort("start_ns").with_columns(
        turn=pl.int_range(pl.len()).over(member), call_count=pl.len().over(member)
    )
    size = pl.col("communicator").replace_strict(sizes, default=0, return_dtype=_INT)
    is_even = pl.col("call_count").n_unique() == 1
    is_even &= pl.col("rank").n_unique() == size.first()
    calls = calls.filter(is_even.over("communicator"))
    numbers = calls.select("row", seq=pl.col("turn").cast(_INT))
    return rows.with_row_index("row").join(numbers, on="row", how="left", maintain_order="left")
