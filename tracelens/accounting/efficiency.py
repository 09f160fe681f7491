"""Where the job's time went: POP efficiencies, and a waterfall from all of the time to the useful part.

Shares are of ranks x job time, the job lasting from the first rank's first step to the last rank's
last event. Useful is what computes the result: forward, backprop, update and the user's own spans; code
that no span covers only where none of these is recorded. So `achieved` is the parallel efficiency of
the POP project (load balance x communication efficiency; pop-coe.eu, "POP standard metrics for parallel
performance analysis").
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tracelens.accounting.categories import CATEGORIES, UNINSTRUMENTED
from tracelens.accounting.device_time import measure_undivided_share
from tracelens.accounting.phases import job_ns
from tracelens.accounting.spent_time import COPIES
from tracelens.arrays import sum_exactly
from tracelens.model.finding_kinds import KINDS
from tracelens.model.result import Efficiency, Share
from tracelens.model.verdict import MOST_UNEXPLAINED
from tracelens.schema.vocabulary import USEFUL_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens.accounting.phases import Phases
    from tracelens.accounting.spent_time import SpentTime
    from tracelens.arrays import Ints
    from tracelens.model.findings import Finding
    from tracelens.model.trace import Trace

# The bars, in the order in which they are taken off; a category that is not useful names its cause.
CAUSES: Final = {
    "data": "data",
    "checkpoint": "checkpoint",
    "gc": "gc",
    "wait": "late_ranks",
    "ps_queue": "ps_queue",
    "transfer": "exposed_transfer",
    COPIES: "copies",
    "idle": "idle",
    CATEGORIES[UNINSTRUMENTED]: "uninstrumented",
}
SLOW_HOST: Final = "slow_host"  # what of waiting for late ranks was for those of a slow host
assert {*CAUSES, *USEFUL_KINDS} == {*CATEGORIES, COPIES}


def list_useful_categories(phases: Phases, *, has_server: bool) -> tuple[str, ...]:
    """Return the categories that compute the result.

    Uncovered time counts only if the program records no computation, such as plain MPI, or if one rank
    serves the others with tasks (`has_server`). Ranks of such programs work between their communication.
    """
    if phases.sum_ns_by_window(*USEFUL_KINDS).any() and not has_server:
        return USEFUL_KINDS
    return (*USEFUL_KINDS, CATEGORIES[UNINSTRUMENTED])


def measure_efficiency(trace: Trace, phases: Phases, spent_time: SpentTime) -> Efficiency | None:
    """Measure the efficiency of the workers' time, all shares of ranks x job time; None without steps.

    It is an upper bound where phases of devices, or the format of the trace, may hide waits.
    """
    steps = trace.steps
    if steps.is_empty():
        return None
    duration_ns = max(job_ns(trace), 1)
    rank_count = steps["process"].n_unique()
    total_ns = rank_count * duration_ns
    useful_ns = int(sum_exactly(spent_time.useful_ns))
    lost_by_category = spent_time.lost_ns_by_category
    lost_ns_by_cause = {
        cause: lost_by_category[name] for name, cause in CAUSES.items() if name in lost_by_category
    }
    outside_share = (total_ns - useful_ns - sum(lost_ns_by_cause.values())) / total_ns
    bars = [Share(cause, ns / total_ns) for cause, ns in lost_ns_by_cause.items()]
    uncovered_ns = int(sum_exactly(phases.sum_ns_by_window(CATEGORIES[UNINSTRUMENTED])))
    is_upper_bound = measure_undivided_share(trace) >= MOST_UNEXPLAINED or (
        trace.recognition is not None and trace.recognition.hides_waits
    )
    return Efficiency(
        achieved=useful_ns / total_ns,
        waterfall=(*bars, Share("outside", outside_share)),
        pop={}
        if is_upper_bound
        else _measure_pop(
            phases,
            spent_time.useful_ns,
            rank_count,
            duration_ns,
            leaves_out_ranks=bool(trace.partial_communicators),
        ),
        job_ns=duration_ns,
        uninstrumented=uncovered_ns / total_ns,
        at_most=is_upper_bound,
        devices=spent_time.device_shares,
    )


def split_off_slow_hosts(efficiency: Efficiency, findings: Iterable[Finding]) -> Efficiency:
    """Split the bar of waits for late ranks: the cost of findings on slow hosts is a bar of its own."""
    cost_share = sum(finding.cost or 0.0 for finding in findings if KINDS[finding.kind].names_hosts)
    bars: list[Share] = []
    for bar in efficiency.waterfall:
        if bar.cause == CAUSES["wait"]:
            host_share = min(cost_share, bar.share)
            bars += [Share(bar.cause, bar.share - host_share), Share(SLOW_HOST, host_share)]
        else:
            bars.append(bar)
    return replace(efficiency, waterfall=tuple(bars))


def _measure_pop(
    phases: Phases, useful_ns: Ints, rank_count: int, duration_ns: int, *, leaves_out_ranks: bool
) -> dict[str, float]:
    """Split parallel efficiency into POP's factors (0 to 1), by name; it is their product.

    On an ideal network each step is shorter by its least transfer: that of the rank that came last.
    What that leaves is serialisation. If `leaves_out_ranks`, transfer holds waits for them, and
    is not split off. `useful_ns` is [worker]; the job takes `duration_ns`.
    """
    most_useful_ns = int(useful_ns.max(initial=0))
    if most_useful_ns == 0:
        return {}
    shares = {
        "load_balance": int(useful_ns.sum()) / rank_count / most_useful_ns,
        "communication_efficiency": most_useful_ns / duration_ns,
    }
    if leaves_out_ranks:
        return shares
    transfer_ns = phases.sum_ns_by_window("transfer")
    have_all_ranks = phases.sum_by_step(transfer_ns > 0) == rank_count  # [step]
    least_ns = phases.find_least_ns_by_step(transfer_ns, transfer_ns > 0)[have_all_ranks]
    ideal_ns = max(duration_ns - int(least_ns.sum()), most_useful_ns)
    return shares | {
        "serialisation_efficiency": most_useful_ns / ideal_ns,
        "transfer_efficiency": ideal_ns / duration_ns,
    }
