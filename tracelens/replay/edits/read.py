"""Edits: what a run is replayed with instead. Each is read from text, such as ``rank:3=median``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.algorithms import carry_out_by, join_up_to, scale_ranks
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.fixes import EditFix, WorkFix
from tracelens.replay.edits.overlap import overlap_backprop, prevent_overlap, write_in_background
from tracelens.replay.edits.placements import arrange, check_received, place_variables, spread_bytes
from tracelens.replay.edits.servers import apply_at_once, remove_incast, send_fewer, speed_up
from tracelens.replay.edits.variant import Variant
from tracelens.replay.edits.work import change_work, parse_factor
from tracelens.simulator.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelens.replay.edits.fixes import Fix
    from tracelens.replay.event_graph import EventGraph

__all__ = ["apply_edits", "list_edits", "parse_fix_number"]

FORMS: Final = (
    "fix:N, rank:R=median, rank:R,phase:P=median, phase:P=0, phase:P*F, bandwidth*F, latency/F, "
    "message_cost/F, buckets=SIZE, overlap=on, overlap=off, algorithm=A, ranks=N, background=SIZE, "
    "placement=STRATEGY, shards=N, processor*F, link*F, shard:N,processor=median, shard:N,link=median, "
    "incast=off, messages/F, arrangement=central, arrangement=sharded, async=on"
)


def apply_edits(
    graph: EventGraph, edits: Sequence[str], fixes: Sequence[Fix | None] = ()
) -> Variant:
    """Apply edits: those of ranks' own work first, for others add edges next to it; then in order.

    Args:
        graph: The run.
        edits: As `FORMS` lists them.
        fixes: The fix of each finding, for ``fix:N``; None where its saving is no replay's.
    """
    changes = [change for edit in edits for change in _read(edit, fixes)]
    balanced_ranks = (change.balanced_rank for change in changes)
    variant = Variant(graph, frozenset(rank for rank in balanced_ranks if rank is not None))
    for change in sorted(changes, key=lambda change: not change.is_work):
        try:
            change.apply(variant)
        except InvalidArgument as error:
            raise InvalidArgument(f"{change.text}: {error}") from None
    return variant


@dataclass(frozen=True)
class _Change:
    """A change by an edit, of ranks' own work or not; `balanced_rank` gets the work of other ranks."""

    text: str
    apply: Callable[[Variant], None]
    is_work: bool
    balanced_rank: int | None = None


def _read(edit: str, fixes: Sequence[Fix | None]) -> Iterator[_Change]:
    """Yield the changes of an edit (its text); the fix of a finding, from `fixes`, may be several."""
    fix = _find_fix(edit, fixes)
    if fix is not None and not isinstance(fix, EditFix):
        yield _Change(text=edit, apply=fix.apply, is_work=isinstance(fix, WorkFix))
        return
    for text in (edit,) if fix is None else fix.edits:
        apply, arguments = _parse(text)
        is_work = apply is change_work
        is_balanced = is_work and arguments["target"] == "=median" and arguments["rank"] is not None
        balanced_rank = int(arguments["rank"]) if is_balanced else None
        yield _Change(
            text, apply=partial(apply, **arguments), is_work=is_work, balanced_rank=balanced_rank
        )


def parse_fix_number(edit: str) -> int | None:
    """Return the number of the finding whose fix an edit is; None for other edits."""
    match = _FIX.fullmatch(edit.strip())
    return None if match is None else int(match["number"])


def _find_fix(edit: str, fixes: Sequence[Fix | None]) -> Fix | None:
    """Return the fix that ``fix:N`` names, that of finding N; None for other edits (texts)."""
    number = parse_fix_number(edit)
    if number is None:
        return None
    if not fixes:
        raise InvalidArgument(f"{edit}: the report of this run has no findings.")
    if not 1 <= number <= len(fixes):
        raise InvalidArgument(
            f"{edit}: the report has {fmt.count(len(fixes), 'finding')}; "
            f"expected a number from 1 to {len(fixes)}."
        )
    fix = fixes[number - 1]
    if fix is None:
        raise InvalidArgument(f"{edit}: no replay gives what fixing finding {number} would save.")
    return fix


def _parse(text: str) -> tuple[Callable[..., None], dict[str, str]]:
    """Return the function that applies an edit (a text) to a variant, and its keyword arguments."""
    for pattern, apply in _EDITS:
        if match := pattern.fullmatch(text.strip()):
            return apply, match.groupdict()
    raise InvalidArgument(f"'{text}' is no edit that is known; there are {FORMS}.")


def list_edits(graph: EventGraph) -> list[str]:
    """Return the single edits (texts) that are worth trying with a run; not all need have an answer."""
    rank_edits = [f"rank:{rank}=median" for rank in graph.ranks] if len(graph.ranks) > 1 else []
    phase_edits = [
        f"phase:{name}=0" for name in OWN_CATEGORIES if graph.measure_work_ns((name,)).any()
    ]
    sizes_bytes = [
        call.nbytes.max() for call in graph.calls if call.call_count > len(graph.step_numbers)
    ]
    bucket_bytes = 4 * max(map(int, sizes_bytes), default=0)
    bucket_edits = [f"buckets={bucket_bytes}B"] if bucket_bytes > 0 else []
    message_edits = ["bandwidth*2", "latency/2", "message_cost/2", *bucket_edits]
    message_edits += ["overlap=off", "overlap=on", *(f"algorithm={name}" for name in ALGORITHMS)]
    server_edits = ["placement=chunked"] if bool((graph.edges.shard_numbers >= 0).any()) else []
    if server_edits and graph.requests.pushed_bytes_by_key:
        server_edits = ["placement=greedy", "placement=largest_first", *server_edits]
    if graph.requests.services.height:
        server_edits.append("async=on")
    return [*rank_edits, *phase_edits, *message_edits, *server_edits]


def _scale_costs(variant: Variant, cost: str, sign: str, number: str) -> None:
    """Multiply the bandwidth or the latency of messages, or what servers' services cost beyond bytes.

    `cost` is bandwidth, latency or message_cost; `sign` (* or /) and `number` are the factor.
    """
    is_of_network = cost != "message_cost"
    if is_of_network:
        check_received(variant.graph)
    factor = parse_factor(sign, number)
    latency_ratio, pace_ratio = (1.0, 1 / factor) if cost == "bandwidth" else (factor, 1.0)
    lag_factors = Costs(variant.graph.edges).compute_scale_factors(
        is_network=is_of_network, latency_ratio=latency_ratio, pace_ratio=pace_ratio
    )
    variant.lag_ns = variant.lag_ns * variant.graph.extend_to_departures(lag_factors)


_FIX: Final = re.compile(r"fix:(?P<number>\d{1,9})")
_FACTOR: Final = r"(?P<sign>[*/])(?P<number>\d+(?:\.\d+)?)"
_TO: Final = r"(?P<target>=median|=0|[*/]\d+(?:\.\d+)?)"
_PACE: Final = r"(?P<target>=median|[*/]\d+(?:\.\d+)?)"
_EDITS: Final[tuple[tuple[re.Pattern[str], Callable[..., None]], ...]] = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (rf"rank:(?P<rank>\d+)(?:,phase:(?P<phase>\w+))?{_TO}", change_work),
        (rf"(?P<rank>(?!))?phase:(?P<phase>\w+){_TO}", change_work),
        (rf"(?P<cost>bandwidth|latency|message_cost){_FACTOR}", _scale_costs),
        (r"buckets=(?P<size>.+)", join_up_to),
        (r"overlap=off", prevent_overlap),
        (r"overlap=on", overlap_backprop),
        (r"background=(?P<size>.+)", write_in_background),
        (r"placement=(?P<strategy>\w+)(?::(?P<chunk>.+))?", place_variables),
        (r"shards=(?P<count>\d+)", spread_bytes),
        (r"algorithm=(?P<algorithm>.+)", carry_out_by),
        (r"ranks=(?P<count>\d+)", scale_ranks),
        (rf"(?:shard:(?P<shard>\d+),)?(?P<resource>processor|link){_PACE}", speed_up),
        (r"incast=off", remove_incast),
        (rf"messages{_FACTOR}", send_fewer),
        (r"async=on", apply_at_once),
        (r"arrangement=(?P<form>.*)", arrange),
    )
)
