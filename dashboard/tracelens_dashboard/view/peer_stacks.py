"""The stacks of a rank beside those of its peers: whose, in which phase, in which part of the run."""

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


def of_findings(store: Store) -> Comparison:
    """Ask for what the first finding about a sampled rank speaks of: its rank, phase and steps."""
    rank = first_rank(store)
    steps = next((f.steps for f in store.report.findings if rank in f.ranks and f.steps), None)
    window = store.window_of(*steps) if steps else None
    seen = [window.start_ns, window.end_ns] if window else None
    return read(store, rank, first_phase(store, rank), seen)


def read(store: Store, rank: Any, phase: Any, seen: Any) -> Comparison:
    """Read what the browser says; all of it may be anything."""
    first = next(iter(store.sampled), -1)
    mine = int(rank) if str(rank).isdecimal() and int(rank) in store.sampled else first
    others = store.peers_of(mine, store.sampled)
    others.sort(key=lambda one: (one in store.flagged, one))
    sane = isinstance(seen, list) and len(seen) == 2 and all(isinstance(v, int) for v in seen)
    return Comparison(
        rank=mine,
        peers=tuple(sorted(others[:MOST_PEERS])),
        phase=phase if phase in store.times.categories else None,
        window=Window(*seen).clamp(store.whole) if sane else store.whole,
    )


def _spent(store: Store, asked: Comparison, rank: int) -> Mapping[Stack, float]:
    lane = store.lane_of(rank)
    if lane is None or rank not in store.sampled:
        return {}
    inside = stacks.pieces(store.scene.lanes, lane, asked.window, asked.phase)
    return stacks.time_by_stack(store.samples(rank), inside)


def stacks_of(
    store: Store, asked: Comparison
) -> tuple[Mapping[Stack, float], list[Mapping[Stack, float]]]:
    """Return the stacks of the rank, and of those peers of which enough was seen."""
    peers = (_spent(store, asked, peer) for peer in asked.peers)
    return _spent(store, asked, asked.rank), [found for found in peers if found]
