"""Stacks of a rank and of its peers, in a phase and a part of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tracelens.lod import stacks
from tracelens.lod.viewport import Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens.accounting.sampled_code import Stack
    from tracelens_dashboard.runs.store import Store

ALL_TIME: Final = "all time"
MOST_PEERS: Final = 6


@dataclass(frozen=True)
class Comparison:
    """What is asked for: a rank and its peers, a phase (null: all time), a window."""

    rank: int
    peers: tuple[int, ...]
    phase: str | None
    window: Window


def first_rank(store: Store, pins: tuple[int, ...] = ()) -> int:
    """Begin with the rank of the link, else with one that a fault names."""
    wanted = (*pins, *sorted(store.flagged), *store.sampled)
    return next(rank for rank in wanted if rank in store.sampled)


def first_phase(store: Store, rank: int) -> str:
    """Begin with the phase that a finding about the rank speaks of."""
    about = [f.phase for f in store.report.findings if rank in f.ranks]
    return next((phase for phase in about if phase in store.times.categories), ALL_TIME)


def from_findings(store: Store) -> Comparison:
    """Ask for what the first finding about a sampled rank speaks of: its rank, phase and steps."""
    rank = first_rank(store)
    steps = next((f.steps for f in store.report.findings if rank in f.ranks and f.steps), None)
    window = store.window_of(*steps) if steps else None
    ends_ns = [window.start_ns, window.end_ns] if window else None
    return read(store, rank, first_phase(store, rank), ends_ns)


def read(store: Store, rank: Any, phase: Any, ends_ns: Any) -> Comparison:
    """Read a rank, a phase and the ends of a window (absolute, in ns) that a browser sent.

    Each may be anything; what makes no sense becomes the first sampled rank, all phases, the whole
    run. Up to `MOST_PEERS` peers are compared with, flagged ranks last.
    """
    is_sampled = str(rank).isdecimal() and int(rank) in store.sampled
    sampled_rank = int(rank) if is_sampled else next(iter(store.sampled), -1)
    peer_ranks = store.peers_of(sampled_rank, store.sampled)
    peer_ranks.sort(key=lambda peer: (peer in store.flagged, peer))
    window = store.run_window
    match ends_ns:
        case [int(start_ns), int(end_ns)]:
            window = Window(start_ns, end_ns).clamp(store.run_window)
    return Comparison(
        rank=sampled_rank,
        peers=tuple(sorted(peer_ranks[:MOST_PEERS])),
        phase=phase if phase in store.times.categories else None,
        window=window,
    )


def _time_by_stack(store: Store, comparison: Comparison, rank: int) -> Mapping[Stack, float]:
    """Return the time (ns) by stack of one rank in the phase and the window."""
    lane = store.row_of_rank(rank)
    if lane is None or rank not in store.sampled:
        return {}
    pieces = stacks.pieces(store.scene.lanes, lane, comparison.window, comparison.phase)
    return stacks.time_by_stack(store.samples(rank), pieces)


def stacks_of(
    store: Store, comparison: Comparison
) -> tuple[Mapping[Stack, float], list[Mapping[Stack, float]]]:
    """Return the time (ns) by stack of the rank, and of each peer that has samples."""
    peers = (_time_by_stack(store, comparison, peer) for peer in comparison.peers)
    return _time_by_stack(store, comparison, comparison.rank), list(filter(None, peers))
