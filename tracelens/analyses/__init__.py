"""Analyses turn a `Trace` into frozen results with findings; none of them knows another one.

An analysis is a module or a package here with ``run(facts)``, and a line in `ANALYSES`. All of them
build on `Facts`. `tracelens.verdicts` puts their results together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracelens.analyses import (
    accumulation,
    arrivals,
    communication,
    critical_path,
    gradient_latency,
    imbalance,
    interleaving,
    life,
    membership,
    stage_imbalance,
)
from tracelens.analyses.integrity import findings as integrity
from tracelens.analyses.links import slow_links
from tracelens.analyses.servers import asynchrony, shards
from tracelens.analyses.stalls import findings as stalls
from tracelens.analyses.stragglers import findings as stragglers
from tracelens.model.findings import Finding
from tracelens.model.result import Report, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.facts import Facts

__all__ = ["ANALYSES", "Analysis", "Finding", "Report", "Result"]


@dataclass(frozen=True, eq=False)
class Analysis:
    """An entry of `ANALYSES`. Large `needed_facts` are kept until the last analysis that needs them."""

    name: str
    question: str
    run: Callable[[Facts], Result]
    needed_facts: frozenset[str] = frozenset()


_COMPUTE_TIME: Final = frozenset({"compute_time"})
_REPLAY: Final = frozenset({"replay"})
_BOTH: Final = _COMPUTE_TIME | _REPLAY
_CALLS: Final = _REPLAY | {"call_table", "call_costs", "message_table"}
_AWAITED: Final = frozenset({"awaited_messages"})

ANALYSES: Final = (
    Analysis("integrity", "What of the run is not in the trace?", integrity.run),
    Analysis("life", "What became of the job's wall time?", life.run),
    Analysis("membership", "Do ranks join or leave while the job runs?", membership.run),
    Analysis(
        "stragglers",
        "Which ranks are stragglers, in what, and at which cost?",
        stragglers.run,
        _BOTH | _AWAITED,
    ),
    Analysis("stalls", "When are all ranks slow at the same time?", stalls.run, _BOTH),
    Analysis("stages", "Have the stages of a pipeline equal work?", stage_imbalance.run, _BOTH),
    Analysis("shards", "Which PS shards are overloaded, and what binds them?", shards.run, _REPLAY),
    Analysis("imbalance", "Is the work spread evenly over ranks?", imbalance.run, _BOTH),
    Analysis(
        "interleaving",
        "Does communication overlap with compute, and what gaps are there?",
        interleaving.run,
        _CALLS,
    ),
    Analysis(
        "communication",
        "How fast are collectives, and are messages too small?",
        communication.run,
        _CALLS,
    ),
    Analysis(
        "accumulation",
        "Are gradients reduced more often than weights are updated?",
        accumulation.run,
        _CALLS,
    ),
    Analysis(
        "arrivals",
        "How large is the arrival skew, and which ranks arrive last?",
        arrivals.run,
        _AWAITED,
    ),
    Analysis("links", "Which links are slow, and when are all of them?", slow_links.run, _CALLS),
    Analysis(
        "critical_path",
        "Which ranks and phases are on the critical path?",
        critical_path.run,
        _REPLAY,
    ),
    Analysis(
        "chains",
        "How long is it from a gradient to the first use of its weights?",
        gradient_latency.run,
    ),
    Analysis(
        "asynchrony", "Which workers are stale, and which wait for their turn?", asynchrony.run
    ),
)
