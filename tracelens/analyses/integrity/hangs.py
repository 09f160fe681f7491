"""Ranks that wait in calls which others never entered, among dumps and recordings that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracelens.analyses.integrity.wording import (
    describe_blocked,
    describe_early_end,
    name_call_of_group,
    name_waiting,
)
from tracelens.model import fmt
from tracelens.model.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens.accounting.standstill import OpenCall, Root, Standstill
    from tracelens.facts import Facts
    from tracelens.model.trace import Trace


def report_hangs(facts: Facts, standstill: Standstill) -> Iterator[Finding]:
    """Report the roots of a standstill; a root that made another call than its peers is a mismatch.

    A rank that was cut off may have been killed in the middle of its work. A rank without a dump is a
    root only if no other rank is a root.
    """
    trace = facts.trace
    failed_ranks = {failure.rank for failure in facts.failures}
    complete_ranks = {*trace.workers.filter("complete")["rank"]} - failed_ranks
    roots = [r for r in standstill.roots if trace.is_snapshot or complete_ranks.issuperset(r.ranks)]
    roots = [root for root in roots if root.ranks[0] in complete_ranks] or roots
    # Roots with one sentence, by case, call, and, where each has its own sentence, ranks.
    groups: dict[tuple[str, OpenCall, tuple[int, ...]], list[Root]] = {}
    for root in roots:
        if not root.is_strayed:
            case = _choose_case(trace, root)
            own_ranks = root.ranks if case in {"", "circle"} else ()
            groups.setdefault((case, root.largest_call, own_ranks), []).append(root)
    for (case, call, _), group in groups.items():
        yield _report_hang(facts, standstill, case, call, group)
    stuck = [call for call in standstill.calls if call.ranks_inside and not call.awaited_ranks]
    if trace.is_snapshot and stuck and not standstill.roots:
        yield _report_call_without_root(trace, stuck[0])


def _choose_case(trace: Trace, root: Root) -> str:
    """Choose the sentence for a root: of a circle, or, among dumps, by what its rank's dump holds."""
    if len(root.ranks) > 1:
        return "circle"
    if not trace.is_snapshot:
        return ""
    events = trace.workers.filter(pl.col("rank") == root.ranks[0])["events"]
    return "no dump" if events.is_empty() else "snapshot" if events[0] else "no call"


def find_circle(facts: Facts, standstill: Standstill) -> Finding | None:
    """Report ranks that wait for each other in a circle, which is a root of several ranks."""
    root = next((root for root in standstill.roots if len(root.ranks) > 1), None)
    if root is None:
        return None
    return _report_hang(facts, standstill, "circle", root.largest_call, [root])


def _report_hang(
    facts: Facts, standstill: Standstill, case: str, call: OpenCall, roots: list[Root]
) -> Finding:
    """Report ranks that others wait for in a call, as `case` says; `roots` have one sentence."""
    trace, early_end = facts.trace, facts.early_end
    ranks = tuple(sorted(rank for root in roots for rank in root.ranks))
    victims = sorted({rank for root in roots for rank in root.victim_ranks})
    fields = {
        "": {"rank": str(ranks[0]), "blocked": describe_blocked(call)},
        "circle": {"ranks": fmt.listing("rank", ranks), "calls": _describe_circle(trace, roots[0])},
    }.get(case) or {
        "ranks": fmt.capital(fmt.listing("rank", ranks)),
        "waiting": name_waiting(call),
        "call": name_call_of_group(trace, call),
    }
    sentences = describe_early_end(early_end)
    own_calls = [own_call for own_call in standstill.calls if {*ranks} <= {*own_call.ranks_inside}]
    sentences += [
        f"It is in {name_call_of_group(trace, own_call)} itself." for own_call in own_calls[:1]
    ]
    further_count = len({*victims} - {*call.ranks_inside})
    if further_count:
        verb = "waits" if further_count == 1 else "wait"
        sentences.append(f"{fmt.count(further_count, 'more rank')} {verb} in turn.")
    return Finding.of(
        "hang",
        fields,
        case=case,
        more=sentences,
        ranks=ranks,
        steps=(call.step, call.step) if call.step >= 0 else None,
        evidence={
            "waiting": list(call.ranks_inside),
            "call": call.seq,
            "victims": victims,
            **({"ended_early": list(early_end.ranks)} if early_end else {}),
        },
    )


def _describe_circle(trace: Trace, root: Root) -> str:
    """Describe in which calls the first few ranks of a circle wait for each other."""
    clauses = []
    for rank in root.ranks[: fmt.MOST_LISTED]:
        call = next((call for call in root.calls if rank in call.ranks_inside), None)
        if call is not None:
            other_ranks = fmt.listing("rank", sorted({*call.awaited_ranks} & {*root.ranks}))
            clauses.append(f"rank {rank} in {name_call_of_group(trace, call)} for {other_ranks}")
    return "; ".join(clauses)


def _report_call_without_root(trace: Trace, call: OpenCall) -> Finding:
    """Report a call that lacks no known rank; ranks that entered nothing may belong to it."""
    silent_ranks = tuple(trace.workers.filter(pl.col("events") == 0)["rank"])
    fields = {"ranks": fmt.listing("rank", call.ranks_inside)}
    if silent_ranks:
        rank_text = fmt.capital(fmt.listing("rank", silent_ranks))
        fields = {"ranks": rank_text, "waiting": name_waiting(call)}
    return Finding.of(
        "hang",
        fields | {"call": name_call_of_group(trace, call)},
        case="no call" if silent_ranks else "call",
        ranks=silent_ranks,
        evidence={"waiting": list(call.ranks_inside), "call": call.seq},
    )
