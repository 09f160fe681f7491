"""Servers with faster processors or links, without incast, with fewer messages, or without barriers.

Without barriers, each gradient is applied as it comes. What joined the gradients of all workers is done
for each of them, and takes as long each time. A worker resumes when its own gradients are applied, and
weights are sent when they are asked for. Servers serve in the order in which requests come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edges import EdgeReason
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.placements import check_received
from tracelens.replay.edits.work import draw_like_others, parse_factor

if TYPE_CHECKING:
    from tracelens.arrays import Flags, Floats, Ints
    from tracelens.replay.edits.variant import Variant
    from tracelens.replay.event_graph import EventGraph

__all__ = ["apply_at_once", "remove_incast", "send_fewer", "speed_up"]

LINK: Final = "link"
# share of steps x ranks: servers take workers in turn if more begin behind a barrier [chosen]
MIN_SHARE_OF_PULLS_IN_TURN: Final = 0.5


def speed_up(variant: Variant, shard: str | None, resource: str, target: str) -> None:
    """Let the processor or the link of a server, or of all, be faster, or as fast as the others'.

    `shard` is the server's number (a text), None = all; `resource` is processor or link; `target` is a
    factor such as ``*2``, or ``=median``.
    """
    graph = variant.graph
    if resource == LINK:
        check_received(graph)
    is_of_resource = _uses_resource(graph, resource)  # [service]
    if not is_of_resource.any():
        raise InvalidArgument(f"this needs services of a {resource} of servers; none are here.")
    shards = graph.requests.server_numbers
    if shard is not None and int(shard) not in shards:
        raise InvalidArgument(f"shard {shard} is none of {fmt.listing('shard', shards.tolist())}.")
    if shard is not None:
        is_of_resource &= graph.requests.services["server"].to_numpy() == int(shard)
    rows = np.flatnonzero(is_of_resource)
    edges = graph.service_edges[rows]
    if target != "=median":
        variant.lag_ns[edges] /= parse_factor(target[0], target[1:])
    elif shard is None:
        raise InvalidArgument("the median of the others needs a shard: shard:N,... .")
    else:
        server = int(np.searchsorted(shards, int(shard)))
        paces = _measure_paces(graph, _uses_resource(graph, resource))
        step_ratios = _find_ratios_to_others(paces, server)
        variant.lag_ns[edges] *= step_ratios[graph.requests.step_index_of_services[rows]]


def _uses_resource(graph: EventGraph, resource: str) -> Flags:
    """Return True for services that occupy a link, or a processor, [service]; a link's have bytes."""
    edges, service_edges = graph.edges, graph.service_edges
    is_network_line: Flags = np.array([*(line.is_network for line in edges.cost_lines), False])
    is_on_network = is_network_line[edges.cost_line_indices[service_edges]]
    is_of_link = is_on_network & (edges.nbytes[service_edges] > 0)
    return np.asarray((service_edges >= 0) & (is_of_link if resource == LINK else ~is_on_network))


def _measure_paces(graph: EventGraph, is_of_resource: Flags) -> Floats:
    """Return the pace of a resource's services (flags), ns per byte of all, [step, server]; else nan."""
    requests, edges, edge = graph.requests, graph.edges, graph.service_edges  # -1 = no edge
    server = np.searchsorted(requests.server_numbers, requests.services["server"].to_numpy())
    cells = requests.step_index_of_services, server
    shape = int(requests.step_index_of_services.max()) + 1, len(requests.server_numbers)
    work_ns, moved_bytes, paces = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    np.add.at(work_ns, cells, np.where(is_of_resource, edges.lag_ns[edge], 0.0))
    np.add.at(moved_bytes, cells, np.where(edge >= 0, np.maximum(edges.nbytes[edge], 0.0), 0.0))
    np.divide(work_ns, moved_bytes, out=paces, where=moved_bytes > 0)
    return paces


def _find_ratios_to_others(paces: Floats, server: int) -> Floats:
    """Return other servers' pace over that of one (an index), [step], from [step, server]; else 1."""
    other_paces = np.delete(paces, server, axis=1)
    other_paces = other_paces[:, ~np.isnan(other_paces).all(axis=0)]
    rows = np.flatnonzero((paces[:, server] > 0) & ~np.isnan(other_paces).any(axis=1))
    if not other_paces.shape[1] or not len(rows):
        raise InvalidArgument("the median of the others needs two servers that move bytes.")
    ratios = np.ones(len(paces))
    ratios[rows] = draw_like_others(other_paces[rows], server) / paces[rows, server]
    return ratios


def remove_incast(variant: Variant) -> None:
    """Let links of servers have the same capacity for many messages as for few."""
    check_received(variant.graph)
    tasks = variant.graph.tasks if variant.tasks is None else variant.tasks
    if not (tasks.crowding_of_kind > 0).any():
        raise InvalidArgument(
            "this needs links that get less through the more messages share them; where as many do at "
            "all times, or none does, nothing tells that."
        )
    variant.tasks = replace(tasks, crowding_of_kind=np.minimum(tasks.crowding_of_kind, 0.0))


def send_fewer(variant: Variant, sign: str, number: str) -> None:
    """Multiply the messages in which servers and workers exchange the same bytes by a factor.

    `sign` (* or /) and `number` are the factor: what each message costs beyond its bytes changes by it.
    """
    graph = variant.graph
    check_received(graph)
    costs = Costs(graph.edges)
    link_edges = graph.service_edges[_uses_resource(graph, LINK)]
    latency_ns = np.zeros(len(variant.lag_ns))  # [edge]
    for line_index, model in costs.model_by_line.items():
        is_of_line = graph.edges.cost_line_indices[link_edges] == line_index
        latency_ns[link_edges[is_of_line]] = model.latency_ns
    if not latency_ns.any():
        raise InvalidArgument(costs.explain_lack(is_network=True))
    saved_share = 1 - parse_factor(sign, number)
    variant.lag_ns -= np.minimum(variant.lag_ns, latency_ns) * saved_share


def apply_at_once(variant: Variant) -> None:
    """Let servers apply each gradient when it comes, and answer when they are asked."""
    graph, edges = variant.graph, variant.graph.edges
    resumption_events = np.unique(edges.target_events[edges.reasons == EdgeReason.BARRIER])
    pull_count = len(graph.step_numbers) * len(graph.ranks)  # each rank pulls in each step
    is_in_turn = len(resumption_events) > MIN_SHARE_OF_PULLS_IN_TURN * pull_count
    if len(graph.ranks) < 2 or not (len(graph.requests.joint_update_rows) or is_in_turn):
        raise InvalidArgument(
            "this needs servers that join the gradients of several workers, or take workers in turn; "
            "there are none."
        )
    _apply_each(variant)
    is_data = edges.reasons == EdgeReason.DATA
    has_source = (
        np.bincount(edges.target_events[is_data], minlength=len(graph.recorded_times_ns)) > 0
    )
    begin_event = graph.first_service_event + 2 * np.arange(graph.requests.services.height)
    worker = graph.requests.worker_of_services
    # Without barriers, workers come to the servers when they waited for an update.
    resumed_worker = graph.threads.find_workers(resumption_events)
    resumptions = _list_events(graph, resumed_worker, resumption_events)
    if is_in_turn:
        # What a server began by itself follows when its worker waits.
        is_alone = ~has_source[begin_event] & (worker >= 0)
        lone_begins = _list_events(graph, worker[is_alone], begin_event[is_alone])
        resumed_event, lone_begin = _match_latest(lone_begins, resumptions)
        variant.add_edges(resumed_event, lone_begin)
        has_source[lone_begin] = True
    # A worker that resumed after an update of all resumes after the last service of its own.
    service_ends = _list_events(graph, worker, begin_event + 1)
    variant.add_edges(*_match_latest(resumptions, service_ends))
    variant.drop_edges(np.flatnonzero(~is_data & has_source[edges.target_events]))
    variant.notes.append(
        "Every worker makes as many steps as it did; what gradients of older weights do to the training "
        "is not in it. Workers compute at the same time then: where they share cores, less is saved."
    )


def _apply_each(variant: Variant) -> None:
    """Make updates that joined all workers' gradients once after each of these, as long each time.

    An update of one variable joins gradients of its key, one of all variables (-1) those of any key.
    """
    requests, service_edges = variant.graph.requests, variant.graph.service_edges
    joint_updates = requests.joint_update_rows
    services = requests.services.select("server", "step", "op", pl.col("key").fill_null(-1))
    services = services.with_row_index("row").with_columns(
        ns=pl.Series(variant.lag_ns[service_edges]), worker=pl.Series(requests.worker_of_services)
    )
    gradients = services.filter(pl.col("op") == "aggregate")
    for has_key in (False, True):
        group = ["server", "step", *(["key"] if has_key else [])]
        updates = services[joint_updates].filter((pl.col("key") >= 0) == has_key)
        update_ns = updates.group_by(group).agg(pl.col("ns").sum())
        by_worker = gradients.group_by(*group, "worker", maintain_order=True)
        last_gradients = by_worker.agg(pl.col("row").last())
        applied = last_gradients.join(update_ns, on=group, nulls_equal=True)
        variant.lag_ns[service_edges[applied["row"].to_numpy()]] += applied["ns"].to_numpy()
    variant.lag_ns[service_edges[joint_updates]] = 0.0


def _list_events(graph: EventGraph, workers: Ints, event: Ints) -> pl.DataFrame:
    """Return a row per event, with its worker and recorded time, by time."""
    columns = {"worker": workers, "recorded_ns": graph.recorded_times_ns[event], "event": event}
    return pl.DataFrame(columns).sort("recorded_ns", "event")


def _match_latest(events: pl.DataFrame, candidates: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return each event's latest earlier candidate of the same worker, and the event, if it has one."""
    pairs = events.join_asof(
        candidates, on="recorded_ns", by="worker", suffix="_before", check_sortedness=False
    ).drop_nulls()
    return pairs["event_before"].to_numpy(), pairs["event"].to_numpy()
