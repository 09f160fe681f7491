"""The communication in a rank's file: what, by which group, how many bytes, and which call of the group.

A collective is a kernel of NCCL or RCCL on its stream, or a span of gloo, MPI or UCC on a thread of
its own. Its operation is in the arguments of `record_param_comms`, which newer files repeat at the
kernel; else the kernel is tied to them by its launch (`External id`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.readers.kineto.words import LIBRARIES, collective, element_bytes
from tracelens.readers.words import kernel_meaning
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from tracelens.readers.kineto.columns import EventTable

__all__ = ["CALL_COLUMNS", "Groups", "communication", "group_name", "groups_of"]

Groups = Mapping[str, tuple[str, Sequence[int]]]  # purpose and ranks, by name

CALL_COLUMNS: Final[dict[str, pl.DataType]] = {
    "op": pl.Categorical(),
    "communicator": pl.Categorical(),
    "seq": pl.Int64(),
    "bytes": pl.Int64(),
    "peer": pl.Int32(),
}
_ASYNCHRONOUS: Final = tuple(
    name for name in LIBRARIES if name not in {"nccl:", "c10d::", "rccl:", "xccl:"}
)
_KERNEL: Final = r"(?i)^[nr]ccl\w*kernel|^(msccl|onecclk?)"
_RECORDED: Final = "record_param_comms"
_ELIDED: Final = "..."
_MOST_SHOWN: Final = 4
_SEQUENCES: Final = ("Seq", "seq", "Sequence", "Sequence Number")


def communication(table: EventTable, groups: Groups) -> pl.DataFrame:
    """Return the rows of a file that are communication, with `CALL_COLUMNS` and their row number.

    Args:
        table: The file; its rows have a column `row`.
        groups: Its process groups, as `groups_of` returns them.
    """
    rows = table.rows.filter(_communicates(table.rows))
    if rows.is_empty():
        return rows.with_columns(
            pl.lit(None, kind).alias(name) for name, kind in CALL_COLUMNS.items()
        )
    recorded = (
        table.rows.filter(pl.col("name") == _RECORDED, pl.col("call").is_not_null())
        .drop_nulls("external")
        .unique("external", keep="first")
        .select("external", launched="call")
    )
    linked = rows.join(recorded, on="external", how="left", maintain_order="left")
    call = pl.coalesce("call", "launched").fill_null(-1)
    call_numbers = linked.select(call.alias("call"))["call"].to_list()
    names = linked["name"].cast(pl.String).to_list()
    facts_of_call = [
        _facts(table.calls[place] if place >= 0 else {}, name, groups)
        for place, name in zip(call_numbers, names, strict=True)
    ]
    facts = pl.DataFrame(facts_of_call, schema=CALL_COLUMNS, orient="row")
    return pl.concat([linked.drop("launched"), facts], how="horizontal")


def _communicates(rows: pl.DataFrame) -> pl.Expr:
    """Return an expression for rows of communication that does not run in the code itself."""
    names = rows["name"].unique().cast(pl.String)
    kernels = names.filter(names.str.contains(_KERNEL)).implode()
    spans = [
        name for name in names.to_list() if name.startswith(_ASYNCHRONOUS) and collective(name)
    ]
    name, category = pl.col("name").cast(pl.String), pl.col("category")
    return ((category == "kernel") & name.is_in(kernels)) | (
        category.is_in(["annotation", "operator"]) & name.is_in(spans)
    )


def _facts(call: Mapping[str, Any], name: str, groups: Groups) -> tuple[Any, ...]:
    """Describe one call, in the order of `CALL_COLUMNS`."""
    given = call.get("Collective name")
    op = collective(given) if isinstance(given, str) else None
    if op is None:
        meant = kernel_meaning(name)
        op = meant[1] if meant else collective(name)
    communicator, ranks = _group(call, groups)
    seq = next((call[key] for key in _SEQUENCES if isinstance(call.get(key), int)), None)
    return (
        op,
        communicator,
        seq if seq is not None and 0 <= seq < 2**31 else None,
        _bytes(call),
        _peer(call, op, ranks),
    )


def _bytes(call: Mapping[str, Any]) -> int | None:
    """Return the payload of this rank: what it puts in, or gets if that is all."""
    bytes_per_element = element_bytes(call.get("dtype"))
    sizes = [call.get(f"{way} msg nelems") for way in ("In", "Out")]
    known = [size for size in sizes if isinstance(size, int) and size >= 0]
    if known and bytes_per_element:
        return max(known[0], 0) * bytes_per_element or max(known) * bytes_per_element
    kinds, shapes = call.get("Input type"), call.get("Input Dims")
    if not isinstance(kinds, list) or not isinstance(shapes, list):
        return None
    total = 0
    for kind, shape in zip(kinds, shapes, strict=False):
        size = element_bytes(kind)
        if size and isinstance(shape, list) and all(isinstance(n, int) and n >= 0 for n in shape):
            count = 1
            for n in shape:
                count *= n
            total += size * count
    return total if 0 < total < 2**62 else None


def _peer(call: Mapping[str, Any], op: str | None, ranks: Sequence[int]) -> int | None:
    """Return the other rank of a message; Kineto counts it within the group."""
    rank_in_group = call.get({"send": "Dst Rank", "recv": "Src Rank"}.get(op or "", ""))
    if not isinstance(rank_in_group, int) or rank_in_group < 0:
        return None
    return ranks[rank_in_group] if rank_in_group < len(ranks) else None


def _group(call: Mapping[str, Any], groups: Groups) -> tuple[str | None, Sequence[int]]:
    """Name the group of a call alike on all its ranks, and return these.

    Names alone may repeat, so ranks are part of it. A call that says nothing is of the only group.
    """
    name = _as_text(call.get("Process Group Name", call.get("Process Group ID")))
    if not name and len(groups) == 1:
        name = next(iter(groups))
    purpose, listed = groups.get(name, (_as_text(call.get("Process Group Description")), ()))
    ranks = listed or _ranks(call)
    return (group_name(name, purpose, ranks) if name or ranks else None), ranks


def _ranks(call: Mapping[str, Any]) -> Sequence[int]:
    """Return the ranks that a call says its group has: one by one, or by their stride."""
    given = _numbers(call.get("Process Group Ranks"))
    if given:
        return given
    first_rank, stride, size = (
        call.get(key) for key in ("Global rank start", "Global rank stride", "Group size")
    )
    if (
        isinstance(first_rank, int)
        and isinstance(stride, int)
        and isinstance(size, int)
        and stride > 0
    ):
        found = range(first_rank, first_rank + stride * min(size, MOST_RANKS), stride)
        return found if found and first_rank >= 0 and found[-1] < MOST_RANKS else ()
    return ()


def _numbers(value: object) -> tuple[int, ...]:
    """Read a list of ranks, which Kineto writes as a text, cut short where it is long."""
    if isinstance(value, str):
        if _ELIDED in value:
            return ()
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list) or not all(
        type(one) is int and 0 <= one < MOST_RANKS for one in value
    ):
        return ()
    return tuple(value)


def _as_text(value: object) -> str:
    return str(value) if isinstance(value, (str, int)) else ""


def group_name(name: str, purpose: str, ranks: Sequence[int]) -> str:
    """Name a group: ``default_pg 0 (ranks 0-7)``."""
    known = " ".join(word for word in (purpose if purpose != "undefined" else "", name) if word)
    return f"{known or 'group'} (ranks {_format_ranks(ranks)})" if ranks else known


def _format_ranks(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    runs_text = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    if len(runs_text) <= _MOST_SHOWN:
        return ",".join(runs_text)
    return f"{','.join(runs_text[:_MOST_SHOWN])},... {len(ranks)} in all, sum {sum(ranks)}"


def groups_of(facts: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the process groups that a file lists: purpose and ranks by name."""
    given = facts.get("distributedInfo")
    listed = given.get("pg_config") if isinstance(given, dict) else None
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        name, ranks = _as_text(entry.get("pg_name")), _numbers(entry.get("ranks"))
        if name and ranks:
            groups[name] = (_as_text(entry.get("pg_desc")), ranks)
    return groups
