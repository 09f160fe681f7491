"""How findings on what limits a trace name processes, calls and places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracelens.model import fmt

if TYPE_CHECKING:
    from tracelens.accounting.early_ends import EarlyEnd
    from tracelens.accounting.standstill import OpenCall
    from tracelens.model.trace import Trace

MAX_NAMES_LISTED: Final = 8  # processes or ranks: a sentence names no more [policy]


def identify(process: dict[str, Any]) -> dict[str, Any]:
    """Return the rank or shard, and the host, of a process."""
    is_server, shard = process["role"] == "ps", process["shard"]
    return {
        "ranks": () if is_server else (process["rank"],),
        "shards": (shard,) if is_server and shard is not None else (),
        "hosts": (process["host"],),
    }


def name_process(process: dict[str, Any]) -> str:
    """Name the rank of a worker, or the shard of a server."""
    if process["role"] == "worker":
        return f"rank {process['rank']}"
    return f"PS shard {process['rank'] if process['shard'] is None else process['shard']}"


def describe_location(span: dict[str, Any] | None) -> str:
    """Describe in which span a process broke off, as the end of a sentence."""
    if span is None:
        return ""
    name = "" if span["name"] == span["kind"] else f" ({span['name']})"
    return f", inside {span['kind']}{name}"


def list_some(names: list[str]) -> str:
    """List names, the first few of many."""
    more = " and more" if len(names) > MAX_NAMES_LISTED else ""
    return ", ".join(names[:MAX_NAMES_LISTED]) + more


def describe_blocked(call: OpenCall) -> str:
    """Describe which ranks a call blocked, as a clause that follows what became of the absent rank."""
    were = "was" if len(call.ranks_inside) == 1 else "were"
    ranks = fmt.listing("rank", call.ranks_inside)
    return f"{ranks} {were} blocked, since it never entered {name_call(call)}"


def name_call(call: OpenCall) -> str:
    """Name a call by its operation and number; a message by its operation."""
    return call.op if call.seq < 0 else f"{call.op} #{call.seq}"


def name_waiting(call: OpenCall, *, is_over: bool = False) -> str:
    """Describe which ranks wait in a call, or waited, as a clause."""
    wait = "waited" if is_over else "waits" if len(call.ranks_inside) == 1 else "wait"
    return f"{fmt.listing('rank', call.ranks_inside)} {wait}"


def name_call_of_group(trace: Trace, call: OpenCall) -> str:
    """Name a call and its communicator."""
    uid = pl.col("communicator").cast(pl.String)
    groups = trace.communicators.filter(uid == call.communicator)
    group = groups["name"][0] if groups.height else call.communicator
    return f"{name_call(call)} of group {group}"


def describe_early_end(early_end: EarlyEnd | None) -> list[str]:
    """Describe in a sentence which ranks ended training before the others."""
    if early_end is None:
        return []
    ranks = fmt.capital(fmt.listing("rank", early_end.ranks))
    last_step, others_step = early_end.last_step, early_end.others_last_step
    clause = f"{ranks} ended training after step {last_step}, and others began step {others_step}"
    return [f"{clause}: ranks had unequal numbers of batches."]
