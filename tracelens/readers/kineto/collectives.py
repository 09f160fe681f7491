"""The communication in a rank's file: what, by which group, how many bytes, and which call of the group.

A collective is a kernel of NCCL or RCCL on its stream, or a span of gloo, MPI or UCC on a thread of
its own. Its operation is in the arguments of `record_param_comms`, which newer files repeat at the
kernel; else the kernel is tied to them by its launch (`External id`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from tracelens.readers.kineto.words import LIBRARIES, find_collective, find_element_bytes
from tracelens.readers.words import find_kernel_meaning
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from tracelens.readers.kineto.columns import EventTable


class ProcessGroup(NamedTuple):
    """A process group: its purpose, in PyTorch's words, and its ranks."""

    purpose: str
    ranks: Sequence[int]


Groups = Mapping[str, ProcessGroup]  # by name

MAX_PAYLOAD_BYTES: Final = 2**62  # bytes: a call of more is damaged [definition]
CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.Categorical(),
    "communicator": pl.Categorical(),
    "seq": pl.Int64(),
    "bytes": pl.Int64(),
    "peer": pl.Int32(),
}
# Of the libraries those that communicate on threads of the host.
_HOST_LIBRARIES: Final = tuple(
    name for name in LIBRARIES if name not in {"nccl:", "c10d::", "rccl:", "xccl:"}
)
_KERNEL: Final = r"(?i)^[nr]ccl\w*kernel|^(msccl|onecclk?)"
_LAUNCH: Final = "record_param_comms"  # the event that launches a collective
_ELIDED: Final = "..."
_MAX_RUNS_SHOWN: Final = 4
_SEQUENCES: Final = ("Seq", "seq", "Sequence", "Sequence Number")


def select_communication(table: EventTable, groups: Groups) -> pl.DataFrame:
    """Return the events of a file that are communication, with their `CALL_COLUMNS`.

    `call_index` is that of an event's own arguments in `table.call_facts`, null without; then those of
    the event that launched it count, which has the same `external` id.
    """
    events = table.rows.filter(_is_communication(table.rows))
    if events.is_empty():
        return events.with_columns(pl.lit(None, t).alias(name) for name, t in CALL_COLUMNS.items())
    launches = (
        table.rows.filter(pl.col("name") == _LAUNCH, pl.col("call_index").is_not_null())
        .drop_nulls("external")
        .unique("external", keep="first")
        .select("external", launch_index="call_index")
    )
    joined = events.join(launches, on="external", how="left", maintain_order="left")
    call_indexes = joined.select(pl.coalesce("call_index", "launch_index")).to_series().to_list()
    names = joined["name"].cast(pl.String).to_list()
    call_rows = [
        _describe_call({} if index is None else table.call_facts[index], name, groups)
        for index, name in zip(call_indexes, names, strict=True)
    ]
    call_columns = pl.DataFrame(call_rows, schema=CALL_COLUMNS, orient="row")
    return pl.concat([joined.drop("launch_index"), call_columns], how="horizontal")


def _is_communication(events: pl.DataFrame) -> pl.Expr:
    """Return an expression for communication: kernels, or spans of a library for the host.

    `events` are those to which it is applied, one per row.
    """
    distinct_names = events["name"].unique().cast(pl.String)
    kernel_names = distinct_names.filter(distinct_names.str.contains(_KERNEL)).implode()
    library_names = [name for name in distinct_names.to_list() if name.startswith(_HOST_LIBRARIES)]
    span_names = [name for name in library_names if find_collective(name)]
    name, category = pl.col("name").cast(pl.String), pl.col("category")
    return ((category == "kernel") & name.is_in(kernel_names)) | (
        category.is_in(["annotation", "operator"]) & name.is_in(span_names)
    )


def _describe_call(call: Mapping[str, Any], name: str, groups: Groups) -> tuple[Any, ...]:
    """Return the cells of a call in `CALL_COLUMNS`, by the arguments and the name of its event."""
    collective_name = call.get("Collective name")
    op = find_collective(collective_name) if isinstance(collective_name, str) else None
    if op is None:
        kernel = find_kernel_meaning(name)
        op = kernel[1] if kernel else find_collective(name)
    communicator, ranks = _find_group(call, groups)
    seq = next((call[key] for key in _SEQUENCES if isinstance(call.get(key), int)), None)
    return (
        op,
        communicator,
        seq if seq is not None and 0 <= seq < 2**31 else None,
        _payload_bytes(call),
        _peer_rank(call, op, ranks),
    )


def _payload_bytes(call: Mapping[str, Any]) -> int | None:
    """Return the payload of this rank in bytes: what it puts in, or gets if that is all.

    Without its own arguments (`msg nelems`) it is that of the tensors of the call; None if unknown.
    """
    bytes_per_element = find_element_bytes(call.get("dtype"))
    element_counts = [call.get(f"{way} msg nelems") for way in ("In", "Out")]
    known_counts = [n for n in element_counts if isinstance(n, int) and n >= 0]
    if known_counts and bytes_per_element:
        payload_bytes = (known_counts[0] or max(known_counts)) * bytes_per_element
        return payload_bytes if payload_bytes < MAX_PAYLOAD_BYTES else None
    dtypes, shapes = call.get("Input type"), call.get("Input Dims")
    if not isinstance(dtypes, list) or not isinstance(shapes, list):
        return None
    total_bytes = sum(
        (find_element_bytes(dtype) or 0) * prod(shape)
        for dtype, shape in zip(dtypes, shapes, strict=False)
        if isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape)
    )
    return total_bytes if 0 < total_bytes < MAX_PAYLOAD_BYTES else None


def _peer_rank(call: Mapping[str, Any], op: str | None, ranks: Sequence[int]) -> int | None:
    """Return the other rank of a message; Kineto counts it within the group."""
    rank_in_group = call.get({"send": "Dst Rank", "recv": "Src Rank"}.get(op or "", ""))
    if not isinstance(rank_in_group, int) or rank_in_group < 0:
        return None
    return ranks[rank_in_group] if rank_in_group < len(ranks) else None


def _find_group(call: Mapping[str, Any], groups: Groups) -> tuple[str | None, Sequence[int]]:
    """Return the name of a call's group, alike on all its ranks, and these ranks; None, () if unknown.

    Names alone may repeat, so ranks are part of it. A call that says nothing is of the only group.
    """
    name = _as_text(call.get("Process Group Name", call.get("Process Group ID")))
    if not name and len(groups) == 1:
        name = next(iter(groups))
    unlisted_group = ProcessGroup(_as_text(call.get("Process Group Description")), ())
    purpose, listed_ranks = groups.get(name, unlisted_group)
    ranks = listed_ranks or _ranks_in_call(call)
    return (group_name(name, purpose, ranks) if name or ranks else None), ranks


def _ranks_in_call(call: Mapping[str, Any]) -> Sequence[int]:
    """Return the ranks that a call says its group has: one by one, or by their stride."""
    listed_ranks = _parse_ranks(call.get("Process Group Ranks"))
    if listed_ranks:
        return listed_ranks
    first_rank, stride, size = (
        call.get(key) for key in ("Global rank start", "Global rank stride", "Group size")
    )
    if (
        isinstance(first_rank, int)
        and isinstance(stride, int)
        and isinstance(size, int)
        and stride > 0
    ):
        ranks = range(first_rank, first_rank + stride * min(size, MOST_RANKS), stride)
        return ranks if ranks and first_rank >= 0 and ranks[-1] < MOST_RANKS else ()
    return ()


def _parse_ranks(value: object) -> tuple[int, ...]:
    """Read a list of ranks, which Kineto writes as a text, cut short where it is long."""
    if isinstance(value, str):
        if _ELIDED in value:
            return ()
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list) or not all(
        type(rank) is int and 0 <= rank < MOST_RANKS for rank in value
    ):
        return ()
    return tuple(value)


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, (str, int)) else ""


def group_name(name: str, purpose: str, ranks: Sequence[int]) -> str:
    """Name a group: ``default_pg 0 (ranks 0-7)``."""
    label = " ".join(word for word in (purpose if purpose != "undefined" else "", name) if word)
    return f"{label or 'group'} (ranks {_format_ranks(ranks)})" if ranks else label


def _format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a text of runs: `0-3,8`; cut short, with their sum, if there are many."""
    runs: list[list[int]] = []  # first and last rank of each
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    runs_text = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(runs_text) <= _MAX_RUNS_SHOWN:
        return ",".join(runs_text)
    return f"{','.join(runs_text[:_MAX_RUNS_SHOWN])},... {len(ranks)} in all, sum {sum(ranks)}"


def read_groups(metadata: Mapping[str, Any]) -> dict[str, ProcessGroup]:
    """Return the process groups in the metadata of a file, by name."""
    distributed_info = metadata.get("distributedInfo")
    entries = distributed_info.get("pg_config") if isinstance(distributed_info, dict) else None
    groups: dict[str, ProcessGroup] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict):
            continue
        name, ranks = _as_text(entry.get("pg_name")), _parse_ranks(entry.get("ranks"))
        if name and ranks:
            groups[name] = ProcessGroup(_as_text(entry.get("pg_desc")), ranks)
    return groups
