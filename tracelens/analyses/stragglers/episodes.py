"""Straggler episodes of one cause each, and their price: phases of a rank, ranks of a host, of a time.

What a host's ranks have in common is its median rank: noise that every rank has for itself averages out
there, and one late rank does not make its host late. Hosts are judged against each other as ranks are;
a host is slow if nearly all of its ranks lose about as much as the median one. Stragglers are part of
the median that they were compared with, which hides part of their delay.

The run is replayed without the delay (`replay/model.py`). Reductions under way may absorb a part of it.
Workers that come together stand in each other's way at parameter servers, and a late one has them for
itself: so fixing it saves less than its compute time, or more where others' requests delay its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting import compute_time
from tracelens.analyses.stragglers import detection
from tracelens.memory import give_back
from tracelens.model.findings import TWO_SIDED
from tracelens.replay.delays import Price, price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.stats.null_model import Noise
from tracelens.stats.robust import block_edges, block_levels, lower_medians, medians
from tracelens.stats.window_scan import peer_residuals

if TYPE_CHECKING:
    from tracelens.accounting.compute_time import ComputeTime
    from tracelens.analyses.stragglers.detection import Episode
    from tracelens.arrays import Floats
    from tracelens.replay.windows import WindowedReplay


# share of the steps of both: episodes that have as many in common have one cause [chosen]
MIN_OVERLAP_OF_ONE_CAUSE: Final = 0.5
MIN_HOSTS_TO_COMPARE: Final = 3  # hosts: no host of fewer is judged [chosen]
# probability: a host is not reported if chance is likelier, over all hosts [chosen]
MAX_P_VALUE_OF_SLOW_HOST: Final = 0.003
# share of the fewer steps: a rank's delay that has as many in common with its host's
# is explained [chosen]
MIN_OVERLAP_WITH_SLOW_HOST: Final = 0.5
# share of the median rank's delay: a rank of a slow host that loses less is not slow [chosen]
MIN_SHARE_OF_DELAY_OF_HOST: Final = 0.5
# share of a host's ranks: the host is not slow if fewer are [chosen]
MIN_SHARE_OF_SLOW_RANKS_OF_HOST: Final = 0.75
# share of steps: fewer outside of a host's delay do not show a rank's usual level [chosen]
MIN_SHARE_OF_STEPS_WITHOUT_DELAY: Final = 0.25
# of the job: a straggler among three ranks or more that saves less is not reported, unless it
# loses much itself [policy]
MIN_SAVING_AMONG_PEERS: Final = 0.003
# of the job: a straggler of two ranks that saves less is not reported [policy]
MIN_SAVING_OF_PAIR: Final = 0.03


def group_episodes(own: ComputeTime, found: list[Episode]) -> list[Episode]:
    """Return one entry for what is likely one cause."""
    hosts = find_slow_hosts(own)
    alone = [late for late in found if late.pattern == "migrating"]
    rest = [late for late in found if late.pattern != "migrating"]
    return [
        *alone,
        *_by_time([*hosts, *(one for one in rest if not explained_by_host(one, hosts))]),
    ]


def _by_time(found: list[Episode]) -> list[Episode]:
    """Join ranks that are late in a common phase and the same steps: only together is it felt."""
    groups: list[Episode] = []
    for late in found:
        index = next((i for i, group in enumerate(groups) if _one_cause(group, late)), None)
        if index is None:
            groups.append(late)
        else:
            groups[index] = _joined(groups[index], late)
    return groups


def _joined(group: Episode, late: Episode) -> Episode:
    return replace(
        group,
        ranks=tuple(sorted({*group.ranks, *late.ranks})),
        first=min(group.first, late.first),
        last=max(group.last, late.last),
        effect=group.effect + late.effect,
        p=max(group.p, late.p),
        unsure=max(group.unsure, late.unsure),
        also=tuple(
            name
            for name in dict.fromkeys((*group.also, late.phase, *late.also))
            if name != group.phase
        ),
    )


def _one_cause(one: Episode, other: Episode) -> bool:
    """Return whether two share a phase and their steps; which phase grew most is often chance."""
    common = {one.phase, *one.also} & {other.phase, *other.also}
    return bool(common) and _alike(one, other)


def _alike(one: Episode, other: Episode) -> bool:
    both = len(np.intersect1d(one.touched, other.touched))
    return both >= MIN_OVERLAP_OF_ONE_CAUSE * len(np.union1d(one.touched, other.touched))


_NOT_LASTING: Final = ("sparse", "migrating")


def ranks_of_hosts(hosts: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the ranks (columns) of every host."""
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return found


def find_slow_hosts(own: ComputeTime) -> list[Episode]:
    """Return every host that is late as a whole for a while, with its late ranks."""
    ranks = [*ranks_of_hosts(own.hosts).values()]
    usual = float(np.median([len(each) for each in ranks])) if ranks else 0.0
    alike = [each for each in ranks if len(each) >= max(usual, 2)]
    if len(alike) < MIN_HOSTS_TO_COMPARE:
        return []
    hosts = _as_ranks(own, alike)
    lasting = [late for late in detection.find_episodes(hosts) if late.pattern not in _NOT_LASTING]
    sure = [late for late in lasting if late.p * len(alike) <= MAX_P_VALUE_OF_SLOW_HOST]
    found = (_with_ranks(own, late, alike[late.ranks[0]]) for late in sure)
    return [late for late in found if late is not None]


def explained_by_host(late: Episode, hosts: list[Episode]) -> bool:
    """Return whether a rank is late because its host is: in a phase and in steps in which that is."""
    return any(
        set(late.ranks) <= set(host.ranks)
        and {late.phase, *late.also} & {host.phase, *host.also}
        and len(np.intersect1d(late.touched, host.touched))
        >= MIN_OVERLAP_WITH_SLOW_HOST * min(len(late.touched), len(host.touched))
        for host in hosts
    )


def _as_ranks(own: ComputeTime, ranks: list[list[int]]) -> ComputeTime:
    """Present every host as one rank: its median one; of two ranks a late one does not make it late."""
    return replace(
        own,
        ranks=tuple(range(len(ranks))),
        hosts=tuple(own.hosts[each[0]] for each in ranks),
        own=np.stack([lower_medians(own.own[..., each]) for each in ranks], axis=-1),
        length=np.stack([lower_medians(own.length[:, each]) for each in ranks], axis=-1),
        wait=np.stack([own.wait[:, each].mean(axis=1) for each in ranks], axis=-1),
    )


def _with_ranks(own: ComputeTime, late: Episode, ranks: list[int]) -> Episode | None:
    """Return which ranks a host's delay is one of, and what each loses; null if only of some."""
    levels, error = _levels(own, late, ranks)
    usual = float(np.sort(levels)[len(levels) // 2])
    slow = np.asarray(levels > max(MIN_SHARE_OF_DELAY_OF_HOST * usual, 0.0))
    if slow.mean() < MIN_SHARE_OF_SLOW_RANKS_OF_HOST:
        return None
    height = float(late.effect[late.touched].max(axis=1).mean()) / own.step_ns
    apart = levels[slow] - levels[slow].mean()
    true = 1 - error**2 / float(np.mean(apart**2)) if apart.any() else 0.0
    each = np.maximum(1 + max(true, 0.0) * apart / height, 0.0)
    effect = np.zeros(own.total.shape)
    named = [rank for rank, is_slow in zip(ranks, slow, strict=True) if is_slow]
    effect[:, named] = late.effect.max(axis=1)[:, None] * each
    return replace(late, ranks=tuple(named), effect=effect)


def _levels(own: ComputeTime, late: Episode, ranks: list[int]) -> tuple[Floats, float]:
    """Return what each rank loses in a host's late steps, as a share of the step, and its error."""
    rows = np.flatnonzero(own.settled)
    wanted = [own.phases.index(name) for name in {late.phase, *late.also}]
    values = peer_residuals(own.own[wanted].sum(axis=0), own.step_ns)[rows][:, ranks]
    inside = (rows >= late.first) & (rows <= late.last)
    edges = block_edges(int(inside.sum()))
    blocks = block_levels(values[inside], edges)
    levels = blocks.mean(axis=0)
    if np.count_nonzero(~inside) >= MIN_SHARE_OF_STEPS_WITHOUT_DELAY * len(rows):
        levels = levels - np.median(values[~inside], axis=0)
    return levels, float(np.sqrt(Noise.of(blocks).variance(len(blocks))))


def against_unaffected_ranks(own: ComputeTime, found: list[Episode]) -> list[Episode]:
    """Return the same entries with what they lose against the ranks that are not late meanwhile."""
    late = np.zeros(own.total.shape, np.bool_)
    for entry in found:
        late |= entry.effect > 0
    if len(own.ranks) < 3 or not late.any() or late.all(axis=1).any():
        return found
    rows = np.asarray(late.any(axis=1))
    total = own.total[rows]
    everybody = medians(total, axis=1)
    rest = medians(np.where(late[rows], np.nan, total), axis=1)
    hidden = np.zeros(len(rows))
    hidden[rows] = np.nan_to_num(everybody - rest, nan=0.0)
    return [_corrected(entry, float(hidden[entry.touched].mean())) for entry in found]


def _corrected(entry: Episode, hidden_ns: float) -> Episode:
    """Add to an entry's delay, where it is late, what the median hides."""
    return replace(entry, effect=entry.effect + hidden_ns * (entry.effect > 0))


def priced(
    own: ComputeTime, job_ns: float, replay: WindowedReplay | None = None
) -> list[tuple[Episode, Price]]:
    """Return who is late by own time, and what that costs, where it is worth a sentence.

    Args:
        own: Compute time of all workers.
        job_ns: How long the job took.
        replay: Of the run; None if it cannot be replayed.
    """
    level = own.levelled
    found = against_unaffected_ranks(level, group_episodes(level, detection.find_episodes(level)))
    give_back()  # what each phase's search left is as large as what pricing takes
    costs = [(entry, _price_of(own, entry, job_ns, replay)) for entry in found]
    return [(entry, cost) for entry, cost in costs if cost.saving >= _least_saving(own, entry)]


def _price_of(
    own: ComputeTime, late: Episode, job_ns: float, replay: WindowedReplay | None
) -> Price:
    if own.work_left_to_others(late.ranks):
        return _price_of_pace(own, late)
    total = _time_to_meeting(own, late)
    return price_delay(own, fix_of(own, late), job_ns, replay, total=total, unsure=late.unsure)


def spread_by_work(values: Floats, effect: Floats) -> Floats:
    """Return a lasting delay of each step if what slows a rank slows all that it does there.

    A step with more work, or with a disturbance, is longer by more. Both are [step, rank]; `values` is
    what ranks took for what is late, and `effect` what they usually lose.
    """
    values, late = np.nan_to_num(values, nan=0.0), effect > 0
    fixed = np.where(late, values - effect, np.nan)
    ranks = np.flatnonzero(late.any(axis=0))
    usual = np.maximum(medians(fixed[:, ranks], axis=0), 0.0)
    each = np.zeros_like(effect)
    whole = np.maximum(usual + effect[:, ranks], 1.0)
    each[:, ranks] = values[:, ranks] * effect[:, ranks] / whole
    return each


def _price_of_pace(own: ComputeTime, late: Episode) -> Price:
    """Price ranks that take work at their own pace: what they do less of, others have to do."""
    done = own.steps_done
    peers = own.peers_of(late.ranks)
    less = sum(max(float(np.median(done[peers])) - done[rank], 0.0) for rank in late.ranks)
    saving = less / (float(done[[*peers, *late.ranks]].sum()) + less)
    low, high = (saving * (1 + sign * TWO_SIDED * late.unsure) for sign in (-1, 1))
    return Price(saving, (max(low, 0.0), min(high, 1.0)), cost=0.0, waiting=0)


def fix_of(own: ComputeTime, late: Episode) -> WorkFix:
    """Return what a fix takes away: of what lasts, by what there was to do in each step.

    Steps that were chosen one by one for being late tell by themselves what was lost in them.
    """
    names, effect = (late.phase, *late.also), late.effect
    if late.pattern not in _NOT_LASTING:
        values = own.own[[name in names for name in own.phases]].sum(axis=0)
        effect = spread_by_work(values, effect)
    return WorkFix(own.steps, ((names, effect),))


def _time_to_meeting(own: ComputeTime, late: Episode) -> Floats:
    """Return what ranks take to meet; what follows the meeting of a step delays that of the next one."""
    return (
        own.between_synchronizations
        if {late.phase, *late.also} <= {*compute_time.AFTER_MEETING}
        else own.total
    )


def _least_saving(own: ComputeTime, late: Episode) -> float:
    if len(own.ranks) > 2:
        loses = (
            late.effect.sum(axis=0).max()
            >= compute_time.LEAST_LOSS * own.length.shape[0] * own.step_ns
        )
        return 0.0 if loses else MIN_SAVING_AMONG_PEERS
    return MIN_SAVING_OF_PAIR
