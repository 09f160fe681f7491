"""An OTF2 archive as rows in our words: regions are spans, messages and collectives say with whom.

Source: the OTF2 3.2 manual, "List of all event records" and "List of all definition records". Ranks of
MPI are the places of locations in the group COMM_LOCATIONS; peers are places in their communicator.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.readers.otf2.regions import COLLECTIVES, on_streams, region_table
from tracelens.readers.otf2.unpack import CODES
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from tracelens.readers.otf2.archive import Archive

__all__ = ["EPOCH_NS", "communicators", "process_ranks", "rows_of"]

_NS: Final = 1_000_000_000
_LONGEST: Final = 1 << 62  # ns
EPOCH_NS: Final = (946_684_800_000_000_000, 4_102_444_800_000_000_000)  # the years 2000 to 2100
_NUMBER: Final = re.compile(r"(\d{1,7})\D*$")
_SEND, _RECV, _ISEND, _ISENT, _IRECV_REQUEST, _IRECV, _COLLECTIVE, _REQUESTED, _COMPLETED = range(
    len(CODES)
)
_ON_DEVICE: Final = ("ACCELERATOR_STREAM", "GPU")
_INT: Final = pl.Int64()
_ROW: Final = (
    "rank", "start_ns", "end_ns", "kind", "op", "name", "thread", "stream", "step", "host",
    "communicator", "seq", "bytes", "peer", "key",
)  # fmt: skip


def process_ranks(facts: dict[str, Any]) -> dict[int, int]:
    """Return the rank of each location group: as MPI numbers them, else as their names end."""
    group_of = {place[0]: place[3] for place in facts["locations"]}
    members = enumerate(facts["ranks"][:MOST_RANKS])
    ranks = {group_of[place]: rank for rank, place in members if place in group_of}
    processes = [group for group in facts["groups"] if group[2] == "PROCESS"]
    if not ranks:
        named = {group[0]: _NUMBER.search(str(group[1])) for group in processes}
        numbers = {group: int(found[1]) for group, found in named.items() if found}
        if len(processes) > 1 and len({*numbers.values()}) == len(processes):
            ranks = numbers
    for number, _, _, _, maker in facts["groups"]:  # devices are of the process that made them
        if maker in ranks:
            ranks.setdefault(number, ranks[maker])
    return ranks


def communicators(facts: dict[str, Any], ranks: dict[int, int]) -> dict[int, tuple[str, list[int]]]:
    """Return name and ranks of each communicator; names that are not unique get their number."""
    group_of = {place[0]: place[3] for place in facts["locations"]}
    named = [str(name) for _, name, _ in facts["comms"]]
    found = {}
    for number, name, members in facts["comms"]:
        unique = bool(name) and named.count(str(name)) == 1
        called = str(name) if unique else f"{name or 'communicator'} #{number}"
        found[number] = (called, [ranks.get(group_of.get(place, -1), -1) for place in members])
    return found


def rows_of(
    archive: Archive, ranks: dict[int, int], groups: dict[int, tuple[str, list[int]]]
) -> pl.DataFrame:
    """Return the rows of all locations; rank is null where it is not known of a location."""
    places = _places(archive.facts, ranks)
    regions = region_table(archive.facts["regions"])
    spans = _named(archive.spans, regions, places)
    operations = _placed(archive.operations, groups)
    calls, messages = _within(operations, spans)
    spans = spans.join(calls, on="span", how="left", maintain_order="left")
    taken = pl.col("called").is_not_null()
    spans = spans.with_columns(
        kind=pl.when(taken).then(pl.lit("reduction")).otherwise("kind"),
        op=pl.when(taken).then("called").otherwise("op"),
    )
    flying = pl.concat([messages, *_in_flight(operations)], how="diagonal")
    flying = flying.join(places, on="location", how="left").with_columns(
        kind=pl.lit("reduction"),
        thread=pl.format("{} messages", "thread"),
        stream=pl.lit(None, _INT),
    )
    rows = pl.concat([spans, flying], how="diagonal")
    timed = _timed(rows, archive.facts)
    return _numbered(timed, groups).select(_ROW)


def _places(facts: dict[str, Any], ranks: dict[int, int]) -> pl.DataFrame:
    """Return rank, thread or stream, and host of each location."""
    hosts = {group[0]: str(group[3]) for group in facts["groups"]}
    rows, seen = [], set()
    streams: dict[int, int] = {}
    for number, name, sort, group, _ in facts["locations"]:
        device = sort in _ON_DEVICE
        stream = None
        if device:
            stream = streams[group] = streams.get(group, -1) + 1
        thread = str(name)
        if (group, thread) in seen:
            thread = f"{thread} #{number}"
        seen.add((group, thread))
        rows.append((number, ranks.get(group), hosts.get(group) or None, thread, stream))
    schema = {"location": pl.Int64, "rank": pl.Int32, "host": pl.String, "thread": pl.String}
    return pl.DataFrame(rows, schema=schema | {"stream": pl.Int64}, orient="row")


def _named(spans: pl.DataFrame, regions: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Add what regions mean, and where they ran."""
    placed = spans.join(places, on="location", how="left", maintain_order="left")
    on_device = pl.col("stream").is_not_null()
    code = placed.filter(~on_device).join(regions, on="region", how="left", maintain_order="left")
    kernels = placed.filter(on_device).join(
        on_streams(regions), on="region", how="left", maintain_order="left"
    )
    both = pl.concat([code, kernels], how="diagonal")
    return both.with_columns(pl.col("kind").fill_null("user"), pl.col("name").fill_null("?"))


def _placed(operations: pl.DataFrame, groups: dict[int, tuple[str, list[int]]]) -> pl.DataFrame:
    """Replace communicators by their names, and peers within them by ranks."""
    names = pl.DataFrame(
        [(number, name) for number, (name, _) in groups.items()],
        schema={"comm": pl.Int64, "communicator": pl.String}, orient="row",
    )  # fmt: skip
    peers = pl.DataFrame(
        [
            (number, place, rank)
            for number, (_, members) in groups.items()
            for place, rank in enumerate(members)
            if rank >= 0
        ],
        schema={"comm": pl.Int64, "root": pl.Int64, "peer": pl.Int32}, orient="row",
    )  # fmt: skip
    found = operations.join(names, on="comm", how="left", maintain_order="left")
    return found.join(peers, on=["comm", "root"], how="left", maintain_order="left")


def _within(operations: pl.DataFrame, spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what spans are calls of, and the messages that are not those of their call itself.

    A call of MPI_Sendrecv is the receive, as that is what it waits for; its send has a row of its own.
    """
    word = {_SEND: "send", _RECV: "recv"}
    messages = operations.filter(pl.col("code").is_in([_SEND, _RECV])).with_columns(
        op=pl.col("code").replace_strict(word, default=None, return_dtype=pl.String)
    )
    of_spans = spans.select("span", "end", called_for="op").with_columns(pl.col("span").cast(_INT))
    messages = messages.join(of_spans, on="span", how="left", maintain_order="left")
    own = (pl.col("op") == pl.col("called_for")).fill_null(value=False)
    calls = messages.filter(own).unique("span", keep="last", maintain_order=True)
    rest = messages.join(
        calls.select("span", "code", "time"), on=["span", "code", "time"], how="anti"
    )
    collectives = operations.filter(pl.col("code") == _COLLECTIVE).with_columns(
        op=pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String),
        peer=pl.lit(None, pl.Int32),
    )
    collectives = collectives.drop_nulls("span").unique("span", keep="last", maintain_order=True)
    facts = ("communicator", "bytes", "peer")
    called = pl.concat(
        [
            calls.select(pl.col("span"), *facts, called="op", key="tag"),
            collectives.select("span", *facts, called="op", key=pl.lit(None, _INT)),
        ]
    )
    called = called.unique("span", keep="last").with_columns(pl.col("span").cast(pl.UInt32))
    alone = rest.select(
        "location", "op", *facts, name=pl.format("MPI {}", "op"), key="tag", begin="time",
        end=pl.coalesce("end", "time"),
    )  # fmt: skip
    return called, alone


def _in_flight(operations: pl.DataFrame) -> list[pl.DataFrame]:
    """Return what requests stood for: sends, receives and collectives, from begin to completion."""
    number = pl.col("op").replace_strict(COLLECTIVES, default=None, return_dtype=pl.String)
    return [
        _requests(_turns(operations, _ISEND), _turns(operations, _ISENT), "begin", pl.lit("send")),
        _requests(
            _turns(operations, _IRECV_REQUEST), _turns(operations, _IRECV), "end", pl.lit("recv")
        ),
        _requests(
            _turns(operations, _REQUESTED), _turns(operations, _COMPLETED), "end", number
        ).with_columns(peer=pl.lit(None, pl.Int32)),
    ]


def _requests(
    begun: pl.DataFrame, done: pl.DataFrame, describing: str, op: pl.Expr
) -> pl.DataFrame:
    """Join begins and ends of requests; `describing` is which of them says what it was."""
    key = ["location", "request", "turn"]
    knowing, other = (begun, done) if describing == "begin" else (done, begun)
    moment = "end" if describing == "begin" else "begin"
    both = knowing.rename({"time": describing}).join(
        other.select(*key, pl.col("time").alias(moment)), on=key, how="left", maintain_order="left"
    )
    named = both.with_columns(op=op, begin=pl.coalesce("begin", "end"))
    return named.select(
        "location", "communicator", "bytes", "peer", "op", "begin", "end", key="tag",
        name=pl.format("MPI {}", pl.col("op").fill_null("collective")),
    )  # fmt: skip


def _turns(operations: pl.DataFrame, code: int) -> pl.DataFrame:
    """Return the operations of a sort; `turn` counts those of the same request."""
    place = ["location", "request"]
    chosen = operations.filter(pl.col("code") == code).drop_nulls("request")
    return chosen.with_columns(turn=pl.int_range(pl.len()).over(place))


def _timed(rows: pl.DataFrame, facts: dict[str, Any]) -> pl.DataFrame:
    """Turn ticks into nanoseconds: since 1970, where the archive says when it began."""
    resolution = max(int(facts["resolution"] or 0), 1)
    realtime = facts["realtime"] or 0
    begin = realtime if EPOCH_NS[0] <= realtime < EPOCH_NS[1] else 0
    return rows.with_columns(
        start_ns=_ns(pl.col("begin"), resolution) + begin,
        end_ns=_ns(pl.col("end"), resolution) + begin,
    )


def _ns(ticks: pl.Expr, resolution: int) -> pl.Expr:
    if resolution >= 1 << 62:
        return pl.lit(None, _INT)
    whole, rest = ticks // resolution, ticks % resolution
    part = (rest.cast(pl.Float64) * (_NS / resolution)).round().cast(_INT)
    about = ticks.cast(pl.Float64) * (_NS / resolution)
    return pl.when(about.abs() < _LONGEST).then(whole * _NS + part)


def _numbered(rows: pl.DataFrame, groups: dict[int, tuple[str, list[int]]]) -> pl.DataFrame:
    """Number collectives, which all members call in the same order, where they call equally many."""
    sizes = {name: len({*members}) for name, members in groups.values()}
    own = ["communicator", "rank"]
    counts = pl.col("op").is_in([*{*COLLECTIVES.values()}]) & pl.col("communicator").is_not_null()
    calls = rows.with_row_index("row").filter(counts)
    calls = calls.sort("start_ns").with_columns(
        turn=pl.int_range(pl.len()).over(own), many=pl.len().over(own)
    )
    size = pl.col("communicator").replace_strict(sizes, default=0, return_dtype=_INT)
    even = (pl.col("many").n_unique() == 1) & (pl.col("rank").n_unique() == size.first())
    calls = calls.filter(even.over("communicator"))
    numbers = calls.select("row", seq=pl.col("turn").cast(_INT))
    return rows.with_row_index("row").join(numbers, on="row", how="left", maintain_order="left")
