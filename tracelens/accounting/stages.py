"""Which ranks play the same part: the stages of pipelines, by messages and communicators.

Ranks that hand work on by messages form a chain. A communicator no two of whose ranks are in one chain
joins ranks at the same place of different chains: replicas of a stage, or the ranks that share its
layers. These are peers. Where no communicator does so, ranks are stages if messages pass through three
or more ranks that each receive before they send. In an exchange of borders all ranks send together, and
all are peers. Only a rank that alone all others exchange messages with, and that answers each of them
before it takes the next one, has no stage: it serves them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracelens.caching import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracelens.arrays import Indices, Ints
    from tracelens.model.trace import Trace

MIN_WORKERS_WITH_SERVER: Final = 3  # ranks: none of fewer ranks is a server of the others [chosen]
# share of answers: a server gives as many to the rank that asked last [chosen]
MIN_SHARE_OF_DIRECT_ANSWERS: Final = 0.9
# steps: the first ones show the order of a pipeline's messages [policy]
MAX_STEPS_TO_FIND_DEPTH: Final = 64
# messages in sequence: an exchange of borders may have one; a pipeline has more [chosen]
MIN_DEPTH_OF_PIPELINE: Final = 2


@dataclass(frozen=True, eq=False)
class Stages:
    """The number of every rank's stage, [column], 0 = where a step begins, and that of its chain."""

    stage_of_column: Ints
    chain_of_column: Ints

    @cached_property
    def columns_by_stage(self) -> tuple[Indices, ...]:
        """The ranks (columns) of each stage."""
        stages = np.unique(self.stage_of_column)
        return tuple(np.flatnonzero(self.stage_of_column == stage) for stage in stages)


@dataclass(frozen=True, eq=False)
class Roles:
    """The parts that ranks play: pipeline stages, or None; and the rank that serves others, or None."""

    stages: Stages | None
    server_rank: int | None


def find_roles(trace: Trace) -> Roles:
    """Look for stages and for a server."""
    return Roles(find_stages(trace), find_server_rank(trace))


def find_stages(trace: Trace) -> Stages | None:
    """Find the stages of a pipeline, by messages and communicators; None where all ranks are peers."""
    messages = trace.program_messages
    ranks = trace.workers["rank"].to_list()
    if messages.is_empty() or len(ranks) < 2:
        return None
    column_by_rank = {rank: column for column, rank in enumerate(ranks)}
    pairs = messages.select("rank", "peer").unique().rows()
    links = [
        (column_by_rank[rank], column_by_rank[peer])
        for rank, peer in pairs
        if rank in column_by_rank and peer in column_by_rank
    ]
    chain_of_column = _number_components(len(ranks), links)
    depth_by_column = _find_depths(messages, column_by_rank)
    stage_of_column = _join_by_communicators(trace, column_by_rank, chain_of_column)
    if stage_of_column is None:
        if max(depth_by_column.values(), default=0) < MIN_DEPTH_OF_PIPELINE:
            return None
        depths = [depth_by_column.get(column, 0) for column in range(len(ranks))]
        stage_of_column = np.array(depths, np.int64)
    return Stages(
        stage_of_column=_order_stages(stage_of_column, depth_by_column),
        chain_of_column=chain_of_column,
    )


def find_server_rank(trace: Trace) -> int | None:
    """Return the rank that serves all others by messages, each when it asks; None without one.

    Between its answers it has no work of its own that theirs could be compared with.
    """
    workers = set(trace.workers["rank"].to_list())
    if len(workers) < MIN_WORKERS_WITH_SERVER or trace.program_messages.is_empty():
        return None
    messages = trace.program_messages.filter(pl.col("rank").is_in(list(workers)))
    pairs = [{rank, peer} for rank, peer in messages.select("rank", "peer").unique().rows()]
    pairs = [pair for pair in pairs if pair <= workers]
    common_ranks = set.intersection(*pairs) if pairs else set()
    if len(common_ranks) != 1 or set.union(*pairs) != workers:
        return None
    (server_rank,) = common_ranks
    # One row per message of the server: what it sends is an answer, what it receives asks for one.
    is_send = pl.col("op").cast(pl.String) == "send"
    done_ns = pl.when(is_send).then("start_ns").otherwise("end_ns")
    own_messages = messages.filter(pl.col("rank") == server_rank)
    exchanges = own_messages.select("peer", done_ns=done_ns, is_answer=is_send).drop_nulls()
    exchanges = exchanges.sort("done_ns").with_columns(
        pl.col("peer", "is_answer").shift(1).name.prefix("previous_")
    )
    has_asked = (~pl.col("is_answer")).cum_sum().over("peer") > 0  # the first task is given unasked
    answers = exchanges.filter("is_answer", has_asked)
    is_direct = ~pl.col("previous_is_answer") & (pl.col("previous_peer") == pl.col("peer"))
    direct_count = answers.filter(is_direct).height
    is_server = answers.height and direct_count >= MIN_SHARE_OF_DIRECT_ANSWERS * answers.height
    return server_rank if is_server else None


def _join_by_communicators(
    trace: Trace, column_by_rank: Mapping[int, int], chain_of_column: Ints
) -> Ints | None:
    """Return the number of each rank's stage, [column]; None if communicators tell no stages.

    Ranks of a communicator without two ranks of one chain are in one stage. A chain is a set of ranks
    that messages connect, such as one pipeline. `column_by_rank` gives the index of a rank in the
    arrays.
    """
    links: list[tuple[int, int]] = []
    for grid in trace.calls:
        columns = [column_by_rank[rank] for rank in grid.ranks.tolist() if rank in column_by_rank]
        if len(set(chain_of_column[columns].tolist())) == len(columns):
            links += [(columns[0], column) for column in columns[1:]]
    column_count = len(chain_of_column)
    stage_of_column = _number_components(column_count, links)
    stages_in_chains = set(zip(stage_of_column.tolist(), chain_of_column.tolist(), strict=True))
    # What joins two ranks of a chain by a detour gives no stages.
    return stage_of_column if links and len(stages_in_chains) == column_count else None


def _number_components(node_count: int, links: Iterable[tuple[int, int]]) -> Ints:
    """Return the number of each node's connected component, [node]; `links` are pairs of nodes."""
    parent = list(range(node_count))

    def find_root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node_a, node_b in links:
        parent[find_root(node_a)] = find_root(node_b)
    return np.unique([find_root(node) for node in range(node_count)], return_inverse=True)[1]


def _find_depths(messages: pl.DataFrame, column_by_rank: Mapping[int, int]) -> dict[int, int]:
    """Count the messages, one after the other, that come before a rank's first one, by column.

    `messages` has one row per send and receive. In each step a rank waits for the sender of its first
    receive, if that ends before its first send; what most steps show counts. Ranks that wait for each
    other in a circle have the depth 0.
    """
    end_ns = pl.col("end_ns")
    first_steps = messages["step"].unique().sort().head(MAX_STEPS_TO_FIND_DEPTH)
    awaited_peers = (
        messages.lazy()
        .filter(pl.col("step").is_in(first_steps.implode()))
        .with_columns(pl.col("op").cast(pl.String))
        .sort("rank", "step", "end_ns", nulls_last=True)
        .group_by("rank", "step", maintain_order=True)
        .agg(
            sent_ns=pl.col("start_ns").filter(pl.col("op") == "send").min(),
            received_ns=end_ns.filter(pl.col("op") == "recv").first(),
            sender=pl.col("peer").filter(pl.col("op") == "recv").first(),
        )
        .with_columns(
            awaited_peer=pl.when(
                pl.col("received_ns") <= pl.col("sent_ns").fill_null(pl.col("received_ns"))
            )
            .then("sender")
            .otherwise(-1)  # none
        )
        .group_by("rank")
        .agg(pl.col("awaited_peer").fill_null(-1).mode().max())
        .collect()
    )
    awaited_by_column = {
        column_by_rank[rank]: column_by_rank.get(peer)
        for rank, peer in awaited_peers.select("rank", "awaited_peer").iter_rows()
        if rank in column_by_rank
    }
    depth_by_column = {}
    for column, awaited_column in awaited_by_column.items():
        depth, ancestor = 0, awaited_column
        while ancestor is not None and depth <= len(awaited_by_column):
            depth, ancestor = depth + 1, awaited_by_column.get(ancestor)
        depth_by_column[column] = depth if depth <= len(awaited_by_column) else 0
    return depth_by_column


def _order_stages(stage_of_column: Ints, depth_by_column: Mapping[int, int]) -> Ints:
    """Renumber the stage of each column in the order in which a step goes through them, [column].

    That is the order of the most frequent depth (messages before a rank's first one) of their ranks.
    """
    typical_depth_by_stage = {}
    for stage in np.unique(stage_of_column).tolist():
        columns = np.flatnonzero(stage_of_column == stage).tolist()
        depth_counts = Counter(depth_by_column.get(column, 0) for column in columns)
        typical_depth_by_stage[stage] = depth_counts.most_common(1)[0][0]
    ordered_stages = sorted(
        typical_depth_by_stage, key=lambda stage: (typical_depth_by_stage[stage], stage)
    )
    new_number = {stage: index for index, stage in enumerate(ordered_stages)}
    return np.array([new_number[stage] for stage in stage_of_column.tolist()], np.int64)
