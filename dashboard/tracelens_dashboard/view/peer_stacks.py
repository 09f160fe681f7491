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
    """What is asked for: a rank and its peers, a phase (None: all time), an absolute window."""

    rank: int
    peer_ranks: tuple[int, ...]
    phase: str | None
    window: Window


def choose_rank(store: Store, pinned_ranks: tuple[int, ...] = ()) -> int:
    """Choose the first sampled rank: a pinned one, else one that faults name, else any."""
    candidates = (*pinned_ranks, *sorted(store.flagged_ranks), *store.sampled_ranks)
    return next(rank for rank in candidates if rank in store.sampled_ranks)


def choose_phase(store: Store, rank: int) -> str:
    """Choose the phase of the first finding about the rank that has one."""
    phases = [finding.phase for finding in store.report.findings if rank in finding.ranks]
    return next((phase for phase in phases if phase in store.category_times.categories), ALL_TIME)


def from_findings(store: Store) -> Comparison:
    """Ask for what the first finding about a sampled rank speaks of: its rank, phase and steps."""
    rank = choose_rank(store)
    steps = next((f.steps for f in store.report.findings if rank in f.ranks and f.steps), None)
    window = store.window_of_steps(*steps) if steps else None
    ends_ns = [window.start_ns, window.end_ns] if window else None
    return read(store, rank, choose_phase(store, rank), ends_ns)


def read(store: Store, rank: Any, phase: Any, ends_ns: Any) -> Comparison:
    """Read a rank, a phase and the ends of a window (absolute, in ns) that a browser sent.

    Each may be anything; what makes no sense becomes the first sampled rank (-1 without any), all
    phases, the whole run. Up to `MOST_PEERS` peers are compared with; ranks that faults name come
    last, as they are no measure.
    """
    is_sampled = str(rank).isdecimal() and int(rank) in store.sampled_ranks
    sampled_rank = int(rank) if is_sampled else next(iter(store.sampled_ranks), -1)
    peer_ranks = store.peer_ranks_of(sampled_rank, store.sampled_ranks)
    peer_ranks.sort(key=lambda peer: (peer in store.flagged_ranks, peer))
    window = store.run_window
    match ends_ns:
        case [int(start_ns), int(end_ns)]:
            window = Window(start_ns, end_ns).clamp(store.run_window)
    return Comparison(
        rank=sampled_rank,
        peer_ranks=tuple(sorted(peer_ranks[:MOST_PEERS])),
        phase=phase if phase in store.category_times.categories else None,
        window=window,
    )


def _time_by_stack(store: Store, comparison: Comparison, rank: int) -> Mapping[Stack, float]:
    """Return a rank's time (ns) by stack in the phase and the window; empty without samples."""
    row = store.scene_row_of_rank(rank)
    if row is None or rank not in store.sampled_ranks:
        return {}
    pieces = stacks.list_pieces(store.scene.span_lanes, row, comparison.window, comparison.phase)
    return stacks.measure_time_by_stack(store.samples_of_rank(rank), pieces)


def measure_stacks(
    store: Store, comparison: Comparison
) -> tuple[Mapping[Stack, float], list[Mapping[Stack, float]]]:
    """Return the time (ns) by stack of the rank, and of each peer that has samples."""
    peers = (_time_by_stack(store, comparison, peer) for peer in comparison.peer_ranks)
    return _time_by_stack(store, comparison, comparison.rank), list(filter(None, peers))
