"""Stragglers: which ranks are late by their own work, in which phase and steps, and what that costs.

Compute time is compared, never how long communication lasts: waiting is the victim's symptom. Others
must have been blocked by a straggler meanwhile (docs/analyses/stragglers.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracelens.accounting import sampled_code
from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.communication.awaited_ranks import (
    measure_blocking,
    measure_caused_waits,
    measure_last_share,
    select_complete_calls,
    sum_waits_by_rank,
)
from tracelens.accounting.compute_time import (
    WARM_UP,
    describe_workload,
    measure_workload,
    measure_workload_ratios,
)
from tracelens.accounting.core_waits import measure_core_wait
from tracelens.accounting.phases import job_ns
from tracelens.analyses.stragglers.episodes import build_fix, group_columns_by_host, price_episodes
from tracelens.analyses.stragglers.location import compare_sections, describe_gap, find_gap
from tracelens.analyses.stragglers.turns import find_turns
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import TWO_SIDED, Finding
from tracelens.stats.robust import measure_deviation, medians

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.compute_time import ComputeTime, Workload
    from tracelens.accounting.core_waits import CoreWait
    from tracelens.accounting.sampled_code import Culprit
    from tracelens.analyses.stragglers.detection import Episode
    from tracelens.analyses.stragglers.location import Gap, Sections
    from tracelens.arrays import Flags
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace
    from tracelens.replay.delays import Price

# late ranks for each other rank: with more, the median rank is no baseline [chosen]
MAX_LATE_RANKS_PER_OTHER: Final = 0.75
MIN_STEPS_FOR_STRAGGLER_TEST: Final = 30  # steps: fewer are not judged [chosen]
# times the uncertainty of clocks: if a step loses less, arrivals cannot show it [chosen]
MIN_LOSS_IN_CLOCK_UNCERTAINTIES: Final = 3
# share of a loss: ranks for which others waited less are no stragglers [chosen]
MIN_SHARE_OF_LOSS_AWAITED: Final = 0.25
# standard deviations: waits for ranks at collectives may be as much longer than measured [chosen]
Z_SCORE_OF_WAIT_AT_CALLS: Final = 2.0
# standard deviations: waits for ranks in messages may be as much longer than measured [chosen]
Z_SCORE_OF_WAIT_FOR_MESSAGES: Final = 2.0
# of a step: a smaller delay of one of two ranks is an opportunity; of 20 healthy runs of two equal
# processes on one quiet machine, two differed by 10 and 13 % throughout [policy]
MIN_DELAY_OF_PAIR_IF_FAULT: Final = 0.15
# share of a host's ranks: if fewer are late, ranks are named instead of the host [chosen]
MIN_SHARE_OF_LATE_RANKS_OF_HOST: Final = 0.75
MIN_SECTIONS_TO_NAME_LAYERS: Final = 3  # sections of a phase: of fewer none is named [policy]
# share of a delay: if reductions in flight absorb less, no sentence says so [policy]
MIN_SHARE_ABSORBED_TO_REPORT: Final = 0.1

_UNCOVERED: Final = CATEGORIES[UNINSTRUMENTED]
_KINDS: Final[dict[str, str]] = {"checkpoint": "checkpoint_stall", "gc": "gc_stall"}
_LAYERED: Final = ("forward", "backprop", "update")
_NO_BASELINE: Final = "So many ranks are stragglers that the median rank is no reliable baseline."


@dataclass(frozen=True)
class Stragglers(DisplayMixin):
    """`statement` says in a sentence what could not be judged; null if everything was."""

    findings: tuple[Finding, ...] = ()
    statement: str | None = None


def run(facts: Facts) -> Stragglers:
    """Find late ranks and price them."""
    trace, times = facts.trace, facts.compute_time
    reason = _explain_too_little(times, restricted=trace.choice.step_ranges is not None)
    if reason:
        return Stragglers(statement=reason)
    run_ns = job_ns(trace)
    priced = price_episodes(times, run_ns, facts.replay)
    unmoving_episodes = [episode for episode, _ in priced if episode.pattern != "migrating"]
    late_count = len({column for episode in unmoving_episodes for column in episode.rank_columns})
    max_late_count = MAX_LATE_RANKS_PER_OTHER * (len(times.ranks) - late_count)
    is_majority_late = len(times.ranks) > 2 and late_count > max_late_count
    workload = measure_workload(facts.phases, times) if priced else {}
    findings = [
        _report(trace, _examine(facts, episode, price, workload, is_majority_late=is_majority_late))
        for episode, price in priced
        if _delays_others(facts, episode, lost_ns=price.saving_interval[0] * run_ns)
    ]
    if times.server_column is not None:  # a slow rank makes fewer of the server's tasks
        return Stragglers(tuple(findings))
    explaining_episodes = [episode for episode, _ in priced if episode.pattern != "sparse"]
    turns = find_turns(times, run_ns, facts, _find_explained(explaining_episodes, trace, times))
    return Stragglers(tuple(_join_turns(findings, turns)))


def _join_turns(findings: list[Finding], turns: list[Finding]) -> Iterator[Finding]:
    """Yield all findings of stragglers and turns, without those that the other kind reports as well.

    These are stalls in a phase with turns, and turns of ranks that are stragglers in the same phase.
    """
    phases_in_turns = {turn.phase for turn in turns if turn.pattern == "migrating"}
    stragglers = [f for f in findings if f.pattern != "sparse" or f.phase not in phases_in_turns]
    known_pairs = {(finding.phase, rank) for finding in stragglers for rank in finding.ranks}
    yield from stragglers
    for turn in turns:
        is_known = all((turn.phase, rank) in known_pairs for rank in turn.ranks)
        if turn.pattern == "migrating" or not is_known:
            yield turn


def _find_explained(episodes: list[Episode], trace: Trace, times: ComputeTime) -> dict[str, Flags]:
    """Return flags, [step, rank], by phase: True where a straggler was late, or near a clock's jump."""
    explained = {
        phase: np.zeros(times.total_compute_ns.shape, np.bool_) for phase in times.phase_names
    }
    for episode in episodes:
        for phase in episode.phase_names:
            explained[phase] |= episode.delay_ns > 0
    host_of_column = np.array(times.host_of_column)
    for host in trace.alignment.hosts:
        columns = np.flatnonzero(host_of_column == host.host) if host.jumps else ()
        for jump_ns in host.jumps:
            last_step = trace.steps.filter(pl.col("start_ns") <= jump_ns)["step"].max()
            step = last_step if isinstance(last_step, int) else times.step_numbers[0]
            is_near = np.abs(times.step_numbers - step) <= 1
            for is_explained in explained.values():
                is_explained[np.ix_(is_near, columns)] = True
    return explained


def _explain_too_little(times: ComputeTime, *, restricted: bool) -> str | None:
    """Explain why detection is impossible, or None. `restricted`: the user selected steps."""
    if len(times.ranks) < 2:
        count_text = len(times.ranks) or "No"
        return f"{count_text} worker rank: straggler tests compare ranks, so none was made."
    advice = ". Choose more with --steps or --time" if restricted else ""
    if len(times.step_numbers) < MIN_STEPS_FOR_STRAGGLER_TEST:
        hint = advice or ". Mark steps with tl.step(i)"
        steps_text = fmt.count(len(times.step_numbers), "step")
        return (
            f"Only {steps_text} found; straggler tests need {MIN_STEPS_FOR_STRAGGLER_TEST}{hint}."
        )
    min_steps = MIN_STEPS_FOR_STRAGGLER_TEST - WARM_UP
    comparable_steps = int(np.count_nonzero(times.is_comparable_row))
    if comparable_steps < min_steps:
        return (
            f"Only {comparable_steps} of {len(times.step_numbers)} steps can be compared: not the first "
            f"{WARM_UP}, nor those in which all ranks take far longer than usual "
            f"or half are not there; straggler tests need {min_steps}{advice}."
        )
    return None


def _delays_others(facts: Facts, episode: Episode, *, lost_ns: float) -> bool:
    """Return True unless peers waited clearly too little for `lost_ns`, what the job loses at least.

    Noise makes peers wait, too. An update is felt in the step after. Not judged without communication,
    within the clocks' uncertainty, and of a delay that migrates.
    """
    trace, times = facts.trace, facts.compute_time
    rows = np.union1d(
        episode.late_step_rows, np.minimum(episode.late_step_rows + 1, len(times.step_numbers) - 1)
    )
    min_clear_ns = MIN_LOSS_IN_CLOCK_UNCERTAINTIES * trace.uncertainty_ns * len(rows)
    is_unclear = episode.pattern == "migrating" or lost_ns < min_clear_ns
    if is_unclear or times.is_work_left_to_others(episode.rank_columns):
        return True
    ranks = tuple(times.ranks[column] for column in episode.rank_columns)
    messages = facts.awaited_messages.filter(pl.col("step").is_in(times.step_numbers[rows]))
    if messages.height:
        peers = tuple(
            times.ranks[column] for column in times.find_peer_columns(episode.rank_columns)
        )
        caused_ns = dict(
            sum_waits_by_rank(measure_caused_waits(messages, facts.phases)).iter_rows()
        )
        extra_ns = _measure_extra_waits(caused_ns, ranks, peers)
        if extra_ns >= MIN_SHARE_OF_LOSS_AWAITED * lost_ns:
            return True
    wait_and_deviation_ns = measure_blocking(
        select_complete_calls(trace, times.step_numbers[rows]), ranks
    )
    if wait_and_deviation_ns is None:
        return not messages.height
    wait_ns, deviation_ns = wait_and_deviation_ns
    return wait_ns + Z_SCORE_OF_WAIT_AT_CALLS * deviation_ns >= MIN_SHARE_OF_LOSS_AWAITED * lost_ns


def _measure_extra_waits(
    caused_ns: dict[int, int], ranks: tuple[int, ...], peers: tuple[int, ...]
) -> float:
    """Return by how much longer others waited for `ranks` than for as many usual peers, ns, at most.

    `caused_ns` is how long others waited for each rank alone, by rank; how peers differ is the margin.
    """
    waits_for_ranks_ns = sum(caused_ns.get(rank, 0) for rank in ranks)
    waits_for_peers_ns = np.array([caused_ns.get(rank, 0) for rank in peers], np.float64)
    if not len(waits_for_peers_ns):
        return float(waits_for_ranks_ns)
    usual_ns = float(np.median(waits_for_peers_ns))
    margin_ns = Z_SCORE_OF_WAIT_FOR_MESSAGES * measure_deviation(waits_for_peers_ns - usual_ns)
    return waits_for_ranks_ns - len(ranks) * usual_ns + margin_ns


@dataclass(frozen=True, eq=False)
class _Straggler:
    """An episode, its price, and what points to its cause; None is what cannot be known.

    `phase_ns_per_step` is how long the latest rank takes for the phase, `peers_phase_ns_per_step` its
    median peer; `workload_ratios` say how many times the peers' samples or tokens it has, by name.
    """

    times: ComputeTime
    episode: Episode
    price: Price
    is_majority_late: bool
    phase_ns_per_step: float | None
    peers_phase_ns_per_step: float | None
    workload_ratios: dict[str, float]
    sections: Sections | None
    gap: Gap | None
    culprit: Culprit | None
    core_wait: CoreWait | None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.times.ranks[column] for column in self.episode.rank_columns)

    @property
    def whole_hosts(self) -> tuple[str, ...]:
        """The hosts all of whose ranks are late; a delay that migrates visits them only by chance."""
        if self.episode.pattern == "migrating":
            return ()
        columns_by_host = group_columns_by_host(self.times.host_of_column)
        are_whole = all(
            len(columns) > 1
            and len({*columns} & {*self.episode.rank_columns})
            >= MIN_SHARE_OF_LATE_RANKS_OF_HOST * len(columns)
            for columns in (columns_by_host[host] for host in self.hosts)
        )
        return self.hosts if are_whole and len(columns_by_host) > len(self.hosts) else ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of these ranks."""
        return tuple(
            dict.fromkeys(self.times.host_of_column[column] for column in self.episode.rank_columns)
        )

    @property
    def is_plural(self) -> bool:
        return len(self.whole_hosts or self.ranks) > 1

    @property
    def delay_share_of_step(self) -> float:
        """Mean delay as a share of a step."""
        return self.episode.mean_delay_ns / self.times.typical_step_ns

    @property
    def steps(self) -> tuple[int, int]:
        """First and last late step."""
        first, last = self.times.step_numbers[self.episode.late_step_rows[[0, -1]]].tolist()
        return first, last


def _examine(
    facts: Facts, episode: Episode, price: Price, workload: Workload, *, is_majority_late: bool
) -> _Straggler:
    """Look for the cause: workload, sections of the phase, neighbouring spans, sampled code."""
    trace, phases, times = facts.trace, facts.phases, facts.compute_time
    phase, rows = episode.phase, episode.late_step_rows
    peer_columns, step_numbers = (
        times.find_compared_columns(episode.rank_columns),
        times.step_numbers[rows],
    )
    ranks, peers = (  # their numbers
        tuple(times.ranks[column] for column in columns)
        for columns in (episode.rank_columns, peer_columns)
    )
    phase_ns, peers_phase_ns = _compare_phase(times, episode)  # per step
    return _Straggler(
        times=times,
        episode=episode,
        price=price,
        is_majority_late=is_majority_late,
        phase_ns_per_step=phase_ns,
        peers_phase_ns_per_step=peers_phase_ns,
        workload_ratios=measure_workload_ratios(workload, episode.rank_columns, peer_columns, rows),
        sections=compare_sections(phases, ranks, peers, phase, step_numbers),
        gap=find_gap(phases, ranks, peers, step_numbers) if phase == _UNCOVERED else None,
        culprit=sampled_code.find_in_ranks(
            trace,
            phases,
            ranks,
            peers,
            phase,
            step_numbers=step_numbers,
            extra_ns=episode.mean_delay_ns,
        ),
        core_wait=measure_core_wait(
            trace, times, episode.rank_columns, slice(rows[0], rows[-1] + 1)
        ),
    )


def _compare_phase(times: ComputeTime, episode: Episode) -> tuple[float | None, float | None]:
    """Return the times of the latest rank and of its median peer, ns a step; None: no peer has any."""
    phase_ns = times.compute_ns[times.phase_names.index(episode.phase)][episode.late_step_rows]
    peers_ns = phase_ns[:, times.find_peer_columns(episode.rank_columns)]
    if not peers_ns.size or np.isnan(peers_ns).all():
        return None, None
    latest_ns = float(np.nanmax(medians(phase_ns[:, episode.rank_columns], 0)))
    return latest_ns, float(medians(np.ravel(peers_ns), 0))


def _report(trace: Trace, straggler: _Straggler) -> Finding:
    """Report a straggler or slow host; what may be chance, or is usual, is an opportunity."""
    times, episode, price = straggler.times, straggler.episode, straggler.price
    kind = "slow_host" if straggler.whole_hosts else _KINDS.get(episode.phase, "straggler")
    is_small = len(times.ranks) == 2 and straggler.delay_share_of_step < MIN_DELAY_OF_PAIR_IF_FAULT
    may_be_chance = straggler.core_wait is not None and straggler.core_wait.is_common
    is_opportunity = is_small or may_be_chance or episode.phase == "checkpoint"
    sections, culprit = straggler.sections, straggler.culprit
    slowdown = None
    if straggler.phase_ns_per_step is not None and straggler.peers_phase_ns_per_step:
        slowdown = straggler.phase_ns_per_step / straggler.peers_phase_ns_per_step
    return Finding.of(
        kind,
        _fill_sentence(straggler),
        category="opportunity" if is_opportunity else "fault",
        more=_add_sentences(straggler),
        saving=price.saving_share,
        interval=price.saving_interval,
        fix=build_fix(times, episode) if price.is_replayed else None,
        cost=None
        if times.leaves_out_ranks or price.communicating_rank_count or price.is_wait_inferred
        else price.cost_share,
        slowdown=slowdown,
        confidence=1.0 - episode.p_value,
        ranks=straggler.ranks,
        hosts=straggler.hosts,
        phase=episode.phase,
        pattern=episode.pattern,
        steps=straggler.steps,
        function=culprit.first_differing_call
        if culprit
        else sections.slowest_name
        if sections
        else None,
        evidence=_list_evidence(trace, straggler),
    )


def _list_evidence(trace: Trace, straggler: _Straggler) -> dict[str, Any]:
    """Return the numbers of the delay itself, its price, and its possible causes."""
    episode, price, extra_ns = straggler.episode, straggler.price, straggler.episode.mean_delay_ns
    error_ns = TWO_SIDED * episode.relative_error * extra_ns
    interval_ns = [round(extra_ns - error_ns), round(extra_ns + error_ns)] if error_ns else None
    phase_ns, peers_phase_ns = straggler.phase_ns_per_step, straggler.peers_phase_ns_per_step
    calls = select_complete_calls(trace, straggler.times.step_numbers[episode.late_step_rows])
    return {
        "extra_ns": round(extra_ns),
        "extra_interval_ns": interval_ns,
        "share_of_step": straggler.delay_share_of_step,
        "steps_late": len(episode.late_step_rows),
        "last_share": measure_last_share(calls, straggler.ranks),
        "ranks_waiting": None if straggler.times.leaves_out_ranks else price.waiting_rank_count,
        "absorbed": price.absorbed_share,
        "absorbed_in_flight": price.absorbed_in_flight_share,
        "p_value": episode.p_value,
        "period": episode.period_steps,
        "also_late_in": list(episode.more_phases),
        "majority_late": straggler.is_majority_late,
        "phase_ns": None if phase_ns is None else round(phase_ns),
        "peers_phase_ns": None if peers_phase_ns is None else round(peers_phase_ns),
        "work": straggler.workload_ratios,
        "parts": straggler.sections.list_evidence() if straggler.sections else [],
        "samples": straggler.culprit.to_evidence() if straggler.culprit else None,
        "place": asdict(straggler.gap) if straggler.gap else None,
        "core_wait": straggler.core_wait.to_evidence() if straggler.core_wait else None,
    }


def _add_sentences(straggler: _Straggler) -> list[str]:
    """Return the sentences that follow the main one."""
    core_wait, culprit, phase = straggler.core_wait, straggler.culprit, straggler.episode.phase
    subject = fmt.listing("rank", straggler.ranks)
    return [
        *([_NO_BASELINE] if straggler.is_majority_late else []),
        *(core_wait.describe(subject, "the others") if core_wait else []),
        *describe_workload(straggler.workload_ratios, several=len(straggler.ranks) > 1),
        *_describe_layers(phase, straggler.sections),
        *([describe_gap(straggler.gap, culprit)] if phase == _UNCOVERED else []),
        *sampled_code.describe_code(culprit),
    ]


def _fill_sentence(straggler: _Straggler) -> dict[str, str]:
    """Return the fields of the sentence of a straggler or slow host."""
    times, hosts = straggler.times, straggler.whole_hosts
    subject = fmt.listing("host", hosts) if hosts else fmt.listing("rank", straggler.ranks)
    fields = {
        "who": fmt.capital(subject),
        "course": _describe_course(straggler),
        "steps": fmt.steps(*straggler.steps),
        "extra": fmt.duration(straggler.episode.mean_delay_ns),
        "share": fmt.percent(straggler.delay_share_of_step),
        "step": fmt.duration(times.typical_step_ns),
        "waiting": _describe_waiting(straggler),
        "it": "them" if straggler.is_plural else "it",
        "absorbed": _describe_absorbed(straggler.price),
    }
    if times.leaves_out_ranks:  # ranks were left out as asked
        object_pronoun = "it" if len(straggler.ranks) == 1 else "them"
        fields["waiting"] = f"who waits for {object_pronoun} is not known"
        fields["saving"] = f"at most {fmt.percent(straggler.price.saving_interval[1], digits=1)}"
    return fields


def _describe_layers(phase: str, sections: Sections | None) -> list[str]:
    """Describe which layers hold the delay, or that all are slower alike, where layers are recorded."""
    is_layered = phase in _LAYERED
    if sections is None or not is_layered or len(sections.table) < MIN_SECTIONS_TO_NAME_LAYERS:
        return []
    names, share = sections.main_names_and_share
    if names:
        return [f"{fmt.percent(share)} of the delay is in {fmt.join_words(list(names))}."]
    alike = f"All {len(sections.table)} parts of {fmt.phase(phase)} are slower alike."
    return [alike] if sections.are_equally_slow else []


def _describe_absorbed(price: Price) -> str:
    if price.absorbed_in_flight_share < MIN_SHARE_ABSORBED_TO_REPORT:
        return ""
    return (
        f"; reductions in flight absorb {fmt.percent(price.absorbed_in_flight_share)} of the delay"
    )


def _describe_course(straggler: _Straggler) -> str:
    """Describe in which phase, and how, ranks are late, as the predicate of a sentence."""
    episode, is_plural = straggler.episode, straggler.is_plural
    steps = len(episode.late_step_rows)
    if episode.pattern == "sparse":
        how_often = (
            f"every {episode.period_steps} steps" if episode.period_steps else f"in {steps} steps"
        )
        phases = fmt.join_words([fmt.phase(name) for name in episode.phase_names])
        return f"{'stall' if is_plural else 'stalls'} in {phases} {how_often}"
    if straggler.whole_hosts:
        predicate = "are slow" if is_plural else "is slow"
    else:
        predicate = "are stragglers" if is_plural else "is a straggler"
    course_clause = {
        "migrating": ", one after the other",
        "intermittent": f", on and off ({steps} steps)",
        "drifting": ", with growing delay",
    }.get(episode.pattern, "")
    return f"{predicate} in {fmt.phase(episode.phase)}{course_clause}"


def _describe_waiting(straggler: _Straggler) -> str:
    """Describe which ranks wait for the late ones, as far as that is known."""
    price, is_plural = straggler.price, straggler.is_plural
    they, them = ("they", "them") if is_plural else ("it", "it")
    if straggler.times.is_work_left_to_others(straggler.episode.rank_columns):
        do = "do" if is_plural else "does"
        return f"no rank waits, but the others make the steps that {they} {do} not"
    if price.waiting_rank_count:
        wait = "waits" if price.waiting_rank_count == 1 else "wait"
        return f"{fmt.count(price.waiting_rank_count, 'rank')} {wait} for {them}"
    if price.communicating_rank_count:
        ranks = fmt.count(price.communicating_rank_count, "rank")
        communicate = "communicates" if price.communicating_rank_count == 1 else "communicate"
        return f"{ranks} {communicate} longer meanwhile (waits not recorded)"
    if price.is_wait_inferred:
        return f"the others wait for {them} in a collective that no span shows (inferred)"
    ends = f", but {they} {'end' if is_plural else 'ends'} last" if price.saving_share > 0 else ""
    return f"no rank was seen waiting for {them}{ends}"
