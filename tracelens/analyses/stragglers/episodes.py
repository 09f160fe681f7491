"""Straggler episodes of one cause each, and their price: phases of a rank, ranks of a host or a time.

Each host is judged as its median rank: the noise of single ranks averages out there, and one late rank
does not make its host late. The run is replayed without the delay (`replay/event_graph.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.compute_time import AFTER_MEETING, LEAST_LOSS
from tracelens.analyses.stragglers import detection
from tracelens.memory import free_unused_memory
from tracelens.model.findings import TWO_SIDED
from tracelens.replay.delays import Price, price_delay
from tracelens.replay.edits.fixes import WorkFix
from tracelens.stats.null_model import Noise
from tracelens.stats.robust import block_edges, block_levels, lower_medians, medians
from tracelens.stats.window_scan import measure_peer_residuals

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
# share of the fewer steps: a rank's delay that has as many in common with
# its host's is explained [chosen]
MIN_OVERLAP_WITH_SLOW_HOST: Final = 0.5
# share of the median rank's delay: a rank of a slow host that loses less is not slow [chosen]
MIN_SHARE_OF_DELAY_OF_HOST: Final = 0.5
# share of a host's ranks: the host is not slow if fewer are [chosen]
MIN_SHARE_OF_SLOW_RANKS_OF_HOST: Final = 0.75
# share of steps: fewer outside of a host's delay do not show a rank's usual level [chosen]
MIN_SHARE_OF_STEPS_WITHOUT_DELAY: Final = 0.25
# of the job: a straggler among three ranks or more that saves less is not reported, unless
# it loses much itself [policy]
MIN_SAVING_AMONG_PEERS: Final = 0.003
# of the job: a straggler of two ranks that saves less is not reported [policy]
MIN_SAVING_OF_PAIR: Final = 0.03

_NOT_LASTING: Final = ("sparse", "migrating")


def group_episodes(times: ComputeTime, episodes: list[Episode]) -> list[Episode]:
    """Join episodes with a likely common cause: a slow host, or simultaneous delays of several ranks."""
    host_episodes = find_slow_hosts(times)
    migrating = [episode for episode in episodes if episode.pattern == "migrating"]
    unexplained = [
        episode
        for episode in episodes
        if episode.pattern != "migrating" and not _is_explained_by_host(episode, host_episodes)
    ]
    return [*migrating, *_join_simultaneous([*host_episodes, *unexplained])]


def _join_simultaneous(episodes: list[Episode]) -> list[Episode]:
    """Join ranks that are late in a common phase and the same steps: only together are they felt."""
    joined: list[Episode] = []
    for episode in episodes:
        for index, earlier in enumerate(joined):
            if _have_one_cause(earlier, episode):
                joined[index] = _join_pair(earlier, episode)
                break
        else:
            joined.append(episode)
    return joined


def _join_pair(episode: Episode, other_episode: Episode) -> Episode:
    """Join two episodes of one cause into one of both's ranks and phases, as certain as the less so."""
    more_phases = dict.fromkeys((*episode.more_phases, *other_episode.phase_names))
    return replace(
        episode,
        rank_columns=tuple(sorted({*episode.rank_columns, *other_episode.rank_columns})),
        delay_ns=episode.delay_ns + other_episode.delay_ns,
        p_value=max(episode.p_value, other_episode.p_value),
        relative_error=max(episode.relative_error, other_episode.relative_error),
        more_phases=tuple(name for name in more_phases if name != episode.phase),
    )


def _have_one_cause(episode: Episode, other_episode: Episode) -> bool:
    """Return True if two share a phase and most steps; which phase grew most is often chance."""
    if not {*episode.phase_names} & {*other_episode.phase_names}:
        return False
    steps_of_both = len(np.intersect1d(episode.late_step_rows, other_episode.late_step_rows))
    return steps_of_both >= MIN_OVERLAP_OF_ONE_CAUSE * len(
        np.union1d(episode.late_step_rows, other_episode.late_step_rows)
    )


def group_columns_by_host(hosts: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the ranks (columns) of every host; `hosts` has that of each rank, [column]."""
    columns_by_host: dict[str, list[int]] = {}
    for column, host in enumerate(hosts):
        columns_by_host.setdefault(host, []).append(column)
    return columns_by_host


def find_slow_hosts(times: ComputeTime) -> list[Episode]:
    """Return an episode for every host that is late as a whole for a while, with its late ranks."""
    columns_of_hosts = [*group_columns_by_host(times.host_of_column).values()]
    rank_counts = [len(columns) for columns in columns_of_hosts]
    min_count = max(float(np.median(rank_counts)) if rank_counts else 0.0, 2)
    large_hosts = [columns for columns in columns_of_hosts if len(columns) >= min_count]
    if len(large_hosts) < MIN_HOSTS_TO_COMPARE:
        return []
    episodes = [
        _find_slow_ranks(times, host_episode, large_hosts[host_episode.rank_columns[0]])
        for host_episode in detection.find_episodes(_present_hosts_as_ranks(times, large_hosts))
        if host_episode.pattern not in _NOT_LASTING
        and host_episode.p_value * len(large_hosts) <= MAX_P_VALUE_OF_SLOW_HOST
    ]
    return [episode for episode in episodes if episode is not None]


def _is_explained_by_host(episode: Episode, host_episodes: list[Episode]) -> bool:
    """Return True if a rank is late because its host is, in a phase and in steps of that."""
    return any(
        set(episode.rank_columns) <= set(host.rank_columns)
        and {*episode.phase_names} & {*host.phase_names}
        and len(np.intersect1d(episode.late_step_rows, host.late_step_rows))
        >= MIN_OVERLAP_WITH_SLOW_HOST * min(len(episode.late_step_rows), len(host.late_step_rows))
        for host in host_episodes
    )


def _present_hosts_as_ranks(times: ComputeTime, members: list[list[int]]) -> ComputeTime:
    """Present each host as its median rank, of two the faster: a late one does not make it late.

    `members` are the ranks (columns) of each host.
    """
    return replace(
        times,
        ranks=tuple(range(len(members))),
        host_of_column=tuple(times.host_of_column[columns[0]] for columns in members),
        compute_ns=np.stack(
            [lower_medians(times.compute_ns[..., columns]) for columns in members], axis=-1
        ),
        step_length_ns=np.stack(
            [lower_medians(times.step_length_ns[:, columns]) for columns in members], axis=-1
        ),
        wait_ns=np.stack([times.wait_ns[:, columns].mean(axis=1) for columns in members], axis=-1),
    )


def _find_slow_ranks(
    times: ComputeTime, host_episode: Episode, host_columns: list[int]
) -> Episode | None:
    """Return the episode of a host's slow ranks, with what each loses; None if only some are slow.

    `host_episode` is the episode of the host as one rank, `host_columns` are its ranks.
    """
    levels, error = _measure_levels(
        times, host_episode, host_columns
    )  # shares of a step, [rank of the host]
    upper_median = float(np.sort(levels)[len(levels) // 2])
    is_slow = np.asarray(levels > max(MIN_SHARE_OF_DELAY_OF_HOST * upper_median, 0.0))
    if is_slow.mean() < MIN_SHARE_OF_SLOW_RANKS_OF_HOST:
        return None
    host_level = host_episode.mean_delay_ns / times.typical_step_ns
    deviations = levels[is_slow] - levels[is_slow].mean()
    # Errors make ranks differ, too: only the rest of the variance is theirs.
    share_of_ranks = 1 - error**2 / float(np.mean(deviations**2)) if deviations.any() else 0.0
    factors = np.maximum(1 + max(share_of_ranks, 0.0) * deviations / host_level, 0.0)
    slow_columns = np.array(host_columns)[is_slow].tolist()
    delay_ns = np.zeros(times.total_compute_ns.shape)
    delay_ns[:, slow_columns] = host_episode.delay_ns.max(axis=1)[:, None] * factors
    return replace(host_episode, rank_columns=tuple(slow_columns), delay_ns=delay_ns)


def _measure_levels(
    times: ComputeTime, host_episode: Episode, host_columns: list[int]
) -> tuple[Floats, float]:
    """Return the loss in a host's late steps, a share of a step, [rank of the host], and its error.

    `host_episode` is the episode of the host as one rank, `host_columns` are its ranks.
    """
    rows = np.flatnonzero(times.is_comparable_row)
    phase_rows = [times.phase_names.index(name) for name in host_episode.phase_names]
    phases_ns = times.compute_ns[phase_rows].sum(axis=0)  # of the host's late phases, [step, rank]
    residuals = measure_peer_residuals(phases_ns, times.typical_step_ns)[rows][:, host_columns]
    is_inside = (rows >= host_episode.late_step_rows[0]) & (rows <= host_episode.late_step_rows[-1])
    blocks = block_levels(residuals[is_inside], block_edges(int(is_inside.sum())))
    levels = blocks.mean(axis=0)
    if np.count_nonzero(~is_inside) >= MIN_SHARE_OF_STEPS_WITHOUT_DELAY * len(rows):
        levels = levels - np.median(residuals[~is_inside], axis=0)
    return levels, float(np.sqrt(Noise.from_blocks(blocks).variance_of_mean(len(blocks))))


def compare_with_unaffected_ranks(times: ComputeTime, episodes: list[Episode]) -> list[Episode]:
    """Add to delays by how much late ranks raise their step's median, with which ranks are compared."""
    is_late = np.zeros(times.total_compute_ns.shape, np.bool_)
    for episode in episodes:
        is_late |= episode.delay_ns > 0
    if len(times.ranks) < 3 or not is_late.any() or is_late.all(axis=1).any():
        return episodes
    has_late_rank = np.asarray(is_late.any(axis=1))
    total_ns = times.total_compute_ns[has_late_rank]
    in_time_median_ns = medians(np.where(is_late[has_late_rank], np.nan, total_ns), axis=1)
    hidden_ns = np.zeros(len(has_late_rank))  # [step]
    raised_ns = medians(total_ns, axis=1) - in_time_median_ns
    hidden_ns[has_late_rank] = np.nan_to_num(raised_ns, nan=0.0)
    corrected = []
    for episode in episodes:
        mean_hidden_ns = float(hidden_ns[episode.late_step_rows].mean())
        delay_ns = episode.delay_ns + mean_hidden_ns * (episode.delay_ns > 0)
        corrected.append(replace(episode, delay_ns=delay_ns))
    return corrected


def price_episodes(
    times: ComputeTime, job_ns: float, replay: WindowedReplay | None = None
) -> list[tuple[Episode, Price]]:
    """Find ranks that are late by own work, and price them; return what is worth a sentence.

    Without a `replay` ranks are taken to meet in each step.
    """
    even_times = times.with_equal_stages
    episodes = group_episodes(even_times, detection.find_episodes(even_times))
    episodes = compare_with_unaffected_ranks(even_times, episodes)
    free_unused_memory()  # what each phase's search left is as large as what pricing takes
    prices = (
        (episode, _price_episode(times, episode, job_ns, replay))
        for episode in episodes
        if len(episode.late_step_rows)  # of huge times the differences may vanish
    )
    return [
        (episode, price)
        for episode, price in prices
        if price.saving_share >= _find_min_saving(times, episode)
    ]


def _price_episode(
    times: ComputeTime, episode: Episode, job_ns: float, replay: WindowedReplay | None
) -> Price:
    """Price an episode, in a job of `job_ns`, by the replay, or as if ranks met in each step."""
    if times.is_work_left_to_others(episode.rank_columns):
        return _price_pace(times, episode)
    # What follows the meeting of a step delays the meeting of the next one.
    follows_meeting = {*episode.phase_names} <= {*AFTER_MEETING}
    total_ns = times.compute_ns_between_meetings if follows_meeting else times.total_compute_ns
    fix, error = build_fix(times, episode), episode.relative_error
    return price_delay(times, fix, job_ns, replay, total=total_ns, relative_error=error)


def spread_by_work(spent_ns: Floats, delay_ns: Floats) -> Floats:
    """Return a lasting delay of each step, ns, if what slows a rank slows all that it does there.

    All are [step, rank]; `spent_ns` is the time of the late phases, and `delay_ns` the usual loss.
    """
    spent_ns, is_late = np.nan_to_num(spent_ns, nan=0.0), delay_ns > 0
    without_delay_ns = np.where(is_late, spent_ns - delay_ns, np.nan)
    columns = np.flatnonzero(is_late.any(axis=0))  # late ranks
    usual_ns = np.maximum(medians(without_delay_ns[:, columns], axis=0), 0.0)  # [late rank]
    slowed_ns = np.maximum(usual_ns + delay_ns[:, columns], 1.0)
    spread_ns = np.zeros_like(delay_ns)
    spread_ns[:, columns] = spent_ns[:, columns] * delay_ns[:, columns] / slowed_ns
    return spread_ns


def _price_pace(times: ComputeTime, episode: Episode) -> Price:
    """Price ranks that take work at their own pace: what they do less of, others have to do."""
    step_counts = times.step_counts  # [rank]
    peers = times.find_peer_columns(episode.rank_columns)
    usual_count = float(np.median(step_counts[peers]))
    fewer_steps = sum(
        max(usual_count - step_counts[column], 0.0) for column in episode.rank_columns
    )
    all_steps = float(step_counts[[*peers, *episode.rank_columns]].sum())
    saving = fewer_steps / (all_steps + fewer_steps)  # share of the job
    low, high = (saving * (1 + sign * TWO_SIDED * episode.relative_error) for sign in (-1, 1))
    return Price(
        saving_share=saving,
        saving_interval=(max(low, 0.0), min(high, 1.0)),
        cost_share=0.0,
        waiting_rank_count=0,
    )


def build_fix(times: ComputeTime, episode: Episode) -> WorkFix:
    """Return the work that a fix takes away: of a lasting delay, by what there was to do in each step.

    Steps that were chosen one by one for being late show by themselves what was lost in them.
    """
    delay_ns = episode.delay_ns
    if episode.pattern not in _NOT_LASTING:
        is_late_phase = [name in episode.phase_names for name in times.phase_names]
        delay_ns = spread_by_work(times.compute_ns[is_late_phase].sum(axis=0), delay_ns)
    return WorkFix(times.step_numbers, phases_and_effects_ns=((episode.phase_names, delay_ns),))


def _find_min_saving(times: ComputeTime, episode: Episode) -> float:
    """Return the share of the job that fixing an episode must save to be reported."""
    if len(times.ranks) <= 2:
        return MIN_SAVING_OF_PAIR
    least_loss_ns = LEAST_LOSS * times.step_length_ns.shape[0] * times.typical_step_ns
    return 0.0 if episode.delay_ns.sum(axis=0).max() >= least_loss_ns else MIN_SAVING_AMONG_PEERS
