"""Which ranks play the same part: the stages of pipelines, by messages and communicators.

Ranks that hand work on by messages form a chain. A communicator no two of whose ranks are in one chain
joins ranks at the same place of different chains: replicas of a stage, or the ranks that share its
layers. These are peers. Where no communicator does so, ranks are stages if messages pass through three
of them or more, each of which receives before it sends; in an exchange of borders all send together, and
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
    """The stage of every rank, 0 = where a step begins, and its chain."""

    stage: Ints
    chain: Ints

    @cached_property
    def members(self) -> tuple[Indices, ...]:
        """The ranks (columns) of each stage."""
        return tuple(np.flatnonzero(self.stage == number) for number in np.unique(self.stage))


@dataclass(frozen=True, eq=False)
class Roles:
    """The parts that ranks play; `stages` is None where all play the same.

    `server` is the rank that serves all others by messages; None without one.
    """

    stages: Stages | None
    server: int | None


def find_roles(trace: Trace) -> Roles:
    """Look for stages and for a server."""
    return Roles(find_stages(trace), find_server(trace))


def find_stages(trace: Trace) -> Stages | None:
    """Find the stages of a pipeline, by messages and communicators; None where all ranks are peers."""
    messages = trace.sent
    ranks = trace.workers["rank"].to_list()
    if messages.is_empty() or len(ranks) < 2:
        return None
    column_of = {rank: column for column, rank in enumerate(ranks)}
    pairs = messages.select("rank", "peer").unique().rows()
    links = [(column_of[a], column_of[b]) for a, b in pairs if a in column_of and b in column_of]
    chain_numbers = _find_components(len(ranks), links)
    depth_of = _find_depths(messages, column_of)
    stage_numbers = _join_by_communicators(trace, column_of, chain_numbers)
    if stage_numbers is None:
        if max(depth_of.values(), default=0) < MIN_DEPTH_OF_PIPELINE:
            return None
        stage_numbers = np.array(
            [depth_of.get(column, 0) for column in range(len(ranks))], np.int64
        )
    return Stages(_order_stages(stage_numbers, depth_of), chain_numbers)


def find_server(trace: Trace) -> int | None:
    """Return the rank that serves all others by messages, each when it asks; None without one.

    Between its answers it has no work of its own that theirs could be compared with.
    """
    workers = set(trace.workers["rank"].to_list())
    if len(workers) < MIN_WORKERS_WITH_SERVER or trace.sent.is_empty():
        return None
    messages = trace.sent.filter(pl.col("rank").is_in(list(workers)))
    pairs = [{rank, peer} for rank, peer in messages.select("rank", "peer").unique().rows()]
    pairs = [pair for pair in pairs if pair <= workers]
    common_ranks = set.intersection(*pairs) if pairs else set()
    if len(common_ranks) != 1 or set.union(*pairs) != workers:
        return None
    (server,) = common_ranks
    # One row per message of the server: what it sends is an answer, what it receives asks for one.
    sends = pl.col("op").cast(pl.String) == "send"
    done_ns = pl.when(sends).then("start_ns").otherwise("end_ns")
    served = messages.filter(pl.col("rank") == server)
    exchanges = served.select("peer", done=done_ns, answers=sends)
    exchanges = exchanges.drop_nulls().sort("done").with_columns(asks=~pl.col("answers").shift(1))
    has_asked = (~pl.col("answers")).cum_sum().over("peer") > 0  # the first task is given unasked
    answers = exchanges.with_columns(asker=pl.col("peer").shift(1)).filter("answers", has_asked)
    is_direct = pl.col("asks") & (pl.col("asker") == pl.col("peer"))
    direct_count = answers.filter(is_direct).height
    is_server = answers.height and direct_count >= MIN_SHARE_OF_DIRECT_ANSWERS * answers.height
    return server if is_server else None


def _join_by_communicators(trace: Trace, column_of: Mapping[int, int], chain: Ints) -> Ints | None:
    """Return the number of each rank's stage, [column]; None if communicators tell no stages.

    Ranks of a communicator without two ranks of one `chain` ([column]) are in one stage.
    """
    links: list[tuple[int, int]] = []
    for grid in trace.calls:
        columns = [column_of[rank] for rank in grid.ranks.tolist() if rank in column_of]
        if len(set(chain[columns].tolist())) == len(columns):
            links += [(columns[0], column) for column in columns[1:]]
    stage_numbers = _find_components(len(chain), links)
    stages_in_chains = set(zip(stage_numbers.tolist(), chain.tolist(), strict=True))
    # What joins two ranks of a chain by a detour gives no stages.
    return stage_numbers if links and len(stages_in_chains) == len(chain) else None


def _find_components(node_count: int, links: Iterable[tuple[int, int]]) -> Ints:
    """Return the number of each node's connected component, [node]; `links` are pairs of nodes."""
    parent = list(range(node_count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in links:
        parent[root(a)] = root(b)
    return np.unique([root(node) for node in range(node_count)], return_inverse=True)[1]


def _find_depths(sent: pl.DataFrame, column_of: Mapping[int, int]) -> dict[int, int]:
    """Count the messages, one after the other, that come before a rank's first one in most steps.

    Ranks are columns here. `sent` has one row per send and receive.
    """
    end_ns = pl.col("end_ns")
    first_steps = sent["step"].unique().sort().head(MAX_STEPS_TO_FIND_DEPTH)
    first_messages = (
        sent.lazy()
        .filter(pl.col("step").is_in(first_steps.implode()))
        .with_columns(pl.col("op").cast(pl.String))
        .sort("rank", "step", "end_ns", nulls_last=True)
        .group_by("rank", "step", maintain_order=True)
        .agg(
            sends=pl.col("start_ns").filter(pl.col("op") == "send").min(),
            received=end_ns.filter(pl.col("op") == "recv").first(),
            sender=pl.col("peer").filter(pl.col("op") == "recv").first(),
        )
        .with_columns(
            after=pl.when(pl.col("received") <= pl.col("sends").fill_null(pl.col("received")))
            .then("sender")
            .otherwise(-1)
        )
        .group_by("rank")
        .agg(pl.col("after").fill_null(-1).mode().max())
        .collect()
    )
    sender_of = {
        column_of[rank]: column_of.get(peer)
        for rank, peer in first_messages.select("rank", "after").iter_rows()
        if rank in column_of
    }
    depths = {}
    for column, sender in sender_of.items():
        depth, ancestor = 0, sender
        while ancestor is not None and depth <= len(sender_of):
            depth, ancestor = depth + 1, sender_of.get(ancestor)
        depths[column] = depth if depth <= len(sender_of) else 0
    return depths


def _order_stages(stage: Ints, depth_of: Mapping[int, int]) -> Ints:
    """Renumber the stage of each column in the order in which a step goes through them, [column].

    That is the order of the most frequent depth (messages before a rank's first one) of their ranks.
    """
    typical_depth = {}
    for old_number in np.unique(stage).tolist():
        depths = Counter(
            depth_of.get(column, 0) for column in np.flatnonzero(stage == old_number).tolist()
        )
        typical_depth[old_number] = depths.most_common(1)[0][0]
    ordered_numbers = sorted(typical_depth, key=lambda number: (typical_depth[number], number))
    new_number = {old_number: index for index, old_number in enumerate(ordered_numbers)}
    return np.array([new_number[old_number] for old_number in stage.tolist()], np.int64)
