"""Edits: what a run is replayed with instead. Each is read from text, such as ``rank:3=median``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model import fmt
from tracelens.replay.edits.algorithms import carry_out_by, join, with_ranks
from tracelens.replay.edits.asynchrony import first_come
from tracelens.replay.edits.changed import Changed
from tracelens.replay.edits.costs import Costs
from tracelens.replay.edits.fixes import EditFix, WorkFix
from tracelens.replay.edits.overlap import beside_backprop, no_overlap, write_in_background
from tracelens.replay.edits.placements import arrange, check_received, place, spread
from tracelens.replay.edits.servers import remove_incast, send_fewer, speed_up
from tracelens.replay.edits.work import factor, work
from tracelens.simulator.algorithms import ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracelens.replay.edits.fixes import Fix
    from tracelens.replay.model import Model

__all__ = ["FORMS", "edited", "fix_number", "known_edits"]

FORMS: Final = (
    "fix:N, rank:R=median, rank:R,phase:P=median, phase:P=0, phase:P*F, bandwidth*F, latency/F, "
    "message_cost/F, buckets=SIZE, overlap=on, overlap=off, algorithm=A, ranks=N, background=SIZE, "
    "placement=STRATEGY, shards=N, processor*F, link*F, shard:N,processor=median, shard:N,link=median, "
    "incast=off, messages/F, arrangement=central, arrangement=sharded, async=on"
)


def edited(model: Model, edits: Sequence[str], fixes: Sequence[Fix | None] = ()) -> Changed:
    """Apply edits: those of ranks' own work first, for others say what goes beside it; then in order.

    Args:
        model: The run.
        edits: As `FORMS` lists them.
        fixes: The fix of each finding, for ``fix:N``; None where its saving is no replay's.

    Raises:
        InvalidArgument: one is no edit, or none that this trace can answer.
    """
    changes = [change for edit in edits for change in _read(edit, fixes)]
    balanced_ranks = frozenset(
        change.balanced_rank for change in changes if change.balanced_rank is not None
    )
    changed = Changed(model, balanced_ranks)
    for change in sorted(changes, key=lambda change: not change.is_work):
        try:
            change.apply(changed)
        except InvalidArgument as error:
            raise InvalidArgument(f"{change.text}: {error}") from None
    return changed


@dataclass(frozen=True)
class _Change:
    """What an edit does; `balanced_rank` is the rank whose work becomes like that of others."""

    text: str
    apply: Callable[[Changed], None]
    is_work: bool
    balanced_rank: int | None = None


def _read(edit: str, fixes: Sequence[Fix | None]) -> Iterator[_Change]:
    """Yield what an edit changes; the fix of a finding may be several edits."""
    fix = _find_fix(edit, fixes)
    if fix is not None and not isinstance(fix, EditFix):
        yield _Change(edit, fix.apply, isinstance(fix, WorkFix))
        return
    for text in (edit,) if fix is None else fix.texts:
        change, how = _known(text)
        is_balanced = change is work and how["to"] == "=median" and how["rank"] is not None
        balanced_rank = int(how["rank"]) if is_balanced else None
        yield _Change(text, partial(change, **how), change is work, balanced_rank)


def fix_number(edit: str) -> int | None:
    """Return the number of the finding whose fix an edit is; None for other edits."""
    match = _FIX.fullmatch(edit.strip())
    return None if match is None else int(match["number"])


def _find_fix(edit: str, fixes: Sequence[Fix | None]) -> Fix | None:
    """Return the fix that an edit names; None for other edits."""
    number = fix_number(edit)
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


def _known(text: str) -> tuple[Callable[..., None], dict[str, str]]:
    """Return what changes a run, and how."""
    for pattern, change in _EDITS:
        if found := pattern.fullmatch(text.strip()):
            return change, found.groupdict()
    raise InvalidArgument(f"'{text}' is no edit that is known; there are {FORMS}.")


def known_edits(model: Model) -> list[str]:
    """Return the single edits that are worth trying with a run; not all need have an answer."""
    ranks = [f"rank:{rank}=median" for rank in model.ranks] if len(model.ranks) > 1 else []
    phases = [f"phase:{name}=0" for name in OWN_CATEGORIES if model.worked((name,)).any()]
    sizes = [call.nbytes.max() for call in model.calls if call.height > len(model.steps)]
    largest = 4 * max(map(int, sizes), default=0)
    buckets = [f"buckets={largest}B"] if largest > 0 else []
    messages = ["bandwidth*2", "latency/2", "message_cost/2", *buckets, "overlap=off", "overlap=on"]
    messages += [f"algorithm={name}" for name in ALGORITHMS]
    servers = ["placement=chunked"] if bool((model.links.shard >= 0).any()) else []
    if servers and model.requests.variables:
        servers = ["placement=greedy", "placement=largest_first", *servers]
    if model.requests.served.height:
        servers.append("async=on")
    return [*ranks, *phases, *messages, *servers]


def _scale_costs(changed: Changed, part: str, sign: str, number: str) -> None:
    """Let bytes of messages (bandwidth), or what does not go by bytes, take so many times as long."""
    is_of_network = part != "message_cost"
    if is_of_network:
        check_received(changed.model)
    times = factor(sign, number)
    latency, pace = (1.0, 1 / times) if part == "bandwidth" else (times, 1.0)
    costs = Costs(changed.model.links)
    factors = costs.scale_factors(network=is_of_network, latency=latency, pace=pace)
    changed.lag = changed.lag * changed.model.extend_to_departures(factors)


_FIX: Final = re.compile(r"fix:(?P<number>\d{1,9})")
_FACTOR: Final = r"(?P<sign>[*/])(?P<number>\d+(?:\.\d+)?)"
_TO: Final = r"(?P<to>=median|=0|[*/]\d+(?:\.\d+)?)"
_PACE: Final = r"(?P<to>=median|[*/]\d+(?:\.\d+)?)"
_EDITS: Final[tuple[tuple[re.Pattern[str], Callable[..., None]], ...]] = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (rf"rank:(?P<rank>\d+)(?:,phase:(?P<phase>\w+))?{_TO}", work),
        (rf"(?P<rank>(?!))?phase:(?P<phase>\w+){_TO}", work),
        (rf"(?P<part>bandwidth|latency|message_cost){_FACTOR}", _scale_costs),
        (r"buckets=(?P<nbytes>.+)", join),
        (r"overlap=off", no_overlap),
        (r"overlap=on", beside_backprop),
        (r"background=(?P<nbytes>.+)", write_in_background),
        (r"placement=(?P<strategy>\w+)(?::(?P<chunk>.+))?", place),
        (r"shards=(?P<count>\d+)", spread),
        (r"algorithm=(?P<algorithm>.+)", carry_out_by),
        (r"ranks=(?P<count>\d+)", with_ranks),
        (rf"(?:shard:(?P<shard>\d+),)?(?P<part>processor|link){_PACE}", speed_up),
        (r"incast=off", remove_incast),
        (rf"messages{_FACTOR}", send_fewer),
        (r"async=on", first_come),
        (r"arrangement=(?P<form>.*)", arrange),
    )
)
