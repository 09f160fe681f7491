"""Edits: what a run is replayed with instead. Each is read from text, such as ``rank:3=median``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens.accounting.categories import OWN_CATEGORIES
from tracelens.errors import InvalidArgument
from tracelens.model.fmt import parsed_size, size
from tracelens.replay.changed import Changed
from tracelens.replay.costs import Costs
from tracelens.replay.placements import place, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens.arrays import Floats, Ints
    from tracelens.replay.model import Model

__all__ = ["FORMS", "edited", "known_edits"]

FORMS: Final = (
    "rank:R=median, rank:R,phase:P=median, phase:P=0, phase:P*F, bandwidth*F, latency/F, "
    "message_cost/F, buckets=SIZE, overlap=off, placement=STRATEGY, shards=N"
)


def edited(model: Model, edits: Sequence[str]) -> Changed:
    """Apply edits, one after the other.

    Raises:
        InvalidArgument: one is no edit, or none that this trace can answer.
    """
    changed = Changed(model, model.links.lag.copy())
    for text in edits:
        for pattern, change in _EDITS:
            if found := pattern.fullmatch(text.strip()):
                try:
                    change(changed, **found.groupdict())
                except InvalidArgument as error:
                    raise InvalidArgument(f"{text}: {error}") from None
                break
        else:
            raise InvalidArgument(f"'{text}' is no edit that is known; there are {FORMS}.")
    return changed


def known_edits(model: Model) -> list[str]:
    """Return the single edits that are worth trying with a run; not all need have an answer."""
    ranks = [f"rank:{rank}=median" for rank in model.ranks] if len(model.ranks) > 1 else []
    phases = [
        f"phase:{name}=0"
        for name in OWN_CATEGORIES
        if any(float(part.sum()) for part in model.worked((name,)))
    ]
    sizes = [call.nbytes.max() for call in model.calls if call.height > len(model.steps)]
    largest = 4 * max(map(int, sizes), default=0)
    buckets = [f"buckets={largest}B"] if largest > 0 else []
    messages = ["bandwidth*2", "latency/2", "message_cost/2", *buckets, "overlap=off"]
    servers = ["placement=chunked"] if bool((model.links.shard >= 0).any()) else []
    if servers and model.variables:
        servers = ["placement=greedy", "placement=largest_first", *servers]
    return [*ranks, *phases, *messages, *servers]


def _factor(sign: str, number: str) -> float:
    value = float(number)
    if value <= 0:
        raise InvalidArgument(f"the factor is {number}, expected one above 0.")
    return value if sign == "*" else 1 / value


def _work(changed: Changed, rank: str | None, phase: str | None, to: str) -> None:
    """Let a rank, or all, work for less in a phase, or in all."""
    model = changed.model
    if phase is not None and phase not in OWN_CATEGORIES:
        raise InvalidArgument(f"phase {phase} is none of {', '.join(OWN_CATEGORIES)}.")
    if rank is not None and int(rank) not in model.ranks:
        raise InvalidArgument(f"rank {rank} is none of {_shown(model.ranks)}.")
    if to == "=median" and len(model.ranks) < 2:
        raise InvalidArgument("the median of the others needs at least two ranks.")
    chosen = range(len(model.ranks)) if rank is None else [model.ranks.index(int(rank))]
    for name in OWN_CATEGORIES if phase is None else (phase,):
        worked = model.worked((name,))
        if not any(float(part.sum()) for part in worked):
            continue
        each = _by_step(model, worked)
        first = np.cumsum([0, *map(len, worked)])
        for worker in chosen:
            target = _target(each, worker, to)
            less = _shared_out(each[:, worker], target, model.rows[worker], worked[worker])
            changed.lag[first[worker] : first[worker + 1]] -= less
    np.maximum(changed.lag, 0.0, out=changed.lag)


def _shown(ranks: Sequence[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}"


def _target(each: Floats, worker: int, to: str) -> Floats:
    """Return how long a worker is to be in a phase in each step, of [step, worker]."""
    if to == "=median":
        return _as_others(np.delete(each, worker, axis=1), worker)
    if to == "=0":
        return np.zeros(len(each))
    return np.asarray(each[:, worker] * _factor(to[0], to[1:]))


def _as_others(others: Floats, seed: int) -> Floats:
    """Return what a rank like some others, [step, rank], would take: [step].

    That is their median in the step, and what one of them differed by from it in some step: else the
    rank would be the only one without noise, and the slowest of all be too quick.
    """
    random = np.random.default_rng(seed)
    usual = np.median(others, axis=1)
    rows = random.permutation(len(others))
    columns = random.integers(0, others.shape[1], len(others))
    return np.maximum(usual + others[rows, columns] - usual[rows], 0.0)


def _by_step(model: Model, worked: Sequence[Floats]) -> Floats:
    """Return how long each worker was in a phase in each step, [step, worker]."""
    columns = [
        np.bincount(rows[rows >= 0], spent[rows >= 0], minlength=len(model.steps))
        for rows, spent in zip(model.rows, worked, strict=True)
    ]
    return np.stack(columns, axis=1)


def _shared_out(now: Floats, then: Floats, rows: Ints, spent: Floats) -> Floats:
    """Return what is taken off between two moments: of each piece of a step the same share.

    Where a worker had nothing of the phase in a step, it gets nothing.
    """
    share = np.divide(now - then, now, out=np.zeros_like(now), where=now > 0)
    return np.where(rows >= 0, share[rows] * spent, 0.0)


def _bandwidth(changed: Changed, sign: str, number: str) -> None:
    costs = Costs(changed.model.links)
    pace = 1 / _factor(sign, number)
    changed.lag = costs.scaled(changed.lag, network=True, pace=pace)


def _latency(changed: Changed, sign: str, number: str) -> None:
    costs = Costs(changed.model.links)
    changed.lag = costs.scaled(changed.lag, network=True, latency=_factor(sign, number))


def _message_cost(changed: Changed, sign: str, number: str) -> None:
    costs = Costs(changed.model.links)
    changed.lag = costs.scaled(changed.lag, network=False, latency=_factor(sign, number))


def _buckets(changed: Changed, nbytes: str) -> None:
    """Join consecutive calls of a step until they have so many bytes."""
    model, links = changed.model, changed.model.links
    try:
        wanted = parsed_size(nbytes.replace("MB", "000000").replace("KB", "000"))
    except ValueError as error:
        raise InvalidArgument(f"{error}.") from None
    costs, joined, before, largest = Costs(links), 0, 0, 0
    wires = model.wires
    for call, at in zip(model.calls, model.calls_at, strict=True):
        sized = np.flatnonzero(call.nbytes > 0)
        if len(sized) < 2 or call.is_rooted:
            continue
        number = links.lines.index(call.line) if call.line in links.lines else -1
        if number not in costs.models:
            continue
        if wanted < np.median(call.nbytes[sized]):
            raise InvalidArgument(
                f"the calls recorded have {size(float(np.median(call.nbytes[sized])))}: when a part of "
                "one is ready was not recorded, so they can only be joined."
            )
        groups = _groups(call.step, call.nbytes, wanted)
        total = np.bincount(groups, np.maximum(call.nbytes, 0))
        expected = costs.predicted(number, np.maximum(call.nbytes, 1).astype(np.float64))
        edges = wires[at + 2 * np.arange(call.height)]
        taken = np.bincount(groups, changed.lag[edges])
        whole = (
            taken
            * costs.predicted(number, total.astype(np.float64))
            / np.bincount(groups, expected)
        )
        last = np.append(np.flatnonzero(np.diff(groups)), call.height - 1)
        changed.lag[edges] = 0.0
        changed.lag[edges[last]] = whole
        before, joined = before + call.height, joined + len(total)
        largest = max(largest, int(total.max()) // max(int(call.nbytes.max()), 1))
    if not before:
        raise InvalidArgument(
            "this needs collectives of at least two sizes, one twice the other, in 16 of a kind or "
            "more, that tell what is paid for a call from what is paid for its bytes."
        )
    changed.notes.append(f"{before} calls become {joined}.")
    if largest > 1:
        changed.notes.append(
            f"The largest call would be {largest} times the largest recorded: its time is extrapolated."
        )


def _groups(step: Ints, nbytes: Ints, wanted: int) -> Ints:
    """Number the joined calls: one is full when it has as many bytes as wanted."""
    groups = np.zeros(len(step), np.int64)
    number, held = 0, 0
    for row, (one, more) in enumerate(zip(step.tolist(), nbytes.tolist(), strict=True)):
        if row and (one != step[row - 1] or held >= wanted or held + more > wanted):
            number, held = number + 1, 0
        groups[row] = number
        held += max(more, 0)
    return groups


def _no_overlap(changed: Changed) -> None:
    """Let the first call of a step go when the last one is begun by all."""
    model, links = changed.model, changed.model.links
    moments = sum(len(thread.moments) for thread in model.threads)
    begins = links.source < moments
    found = 0
    for call, at in zip(model.calls, model.calls_at, strict=True):
        flying = np.flatnonzero(call.in_flight)
        first = flying[np.append(True, np.diff(call.step[flying]) != 0)] if len(flying) else flying
        last = np.append(first[1:] - 1, call.height - 1) if len(first) else first
        goes = dict(zip((at + 2 * last).tolist(), (at + 2 * first).tolist(), strict=True))
        rows = np.flatnonzero(begins & np.isin(links.target, list(goes)))
        target = np.array([goes[one] for one in links.target[rows].tolist()], np.int64)
        several = target != links.target[rows]
        changed.more.append((links.source[rows[several]], target[several]))
        found += int(several.sum())
    if not found:
        raise InvalidArgument("this needs steps with several collectives in flight; none has them.")


def _refusal(needs: str) -> Callable[..., None]:
    def refuse(_changed: Changed, **_found: str) -> None:
        raise InvalidArgument(f"a replay of this trace cannot answer that: {needs}")

    return refuse


_FACTOR: Final = r"(?P<sign>[*/])(?P<number>\d+(?:\.\d+)?)"
_TO: Final = r"(?P<to>=median|=0|[*/]\d+(?:\.\d+)?)"
_EDITS: Final[tuple[tuple[re.Pattern[str], Callable[..., None]], ...]] = tuple(
    (re.compile(pattern), change)
    for pattern, change in (
        (rf"rank:(?P<rank>\d+)(?:,phase:(?P<phase>\w+))?{_TO}", _work),
        (rf"(?P<rank>(?!))?phase:(?P<phase>\w+){_TO}", _work),
        (rf"bandwidth{_FACTOR}", _bandwidth),
        (rf"latency{_FACTOR}", _latency),
        (rf"message_cost{_FACTOR}", _message_cost),
        (r"buckets=(?P<nbytes>.+)", _buckets),
        (r"overlap=off", _no_overlap),
        (r"placement=(?P<strategy>\w+)(?::(?P<chunk>.+))?", place),
        (r"shards=(?P<count>\d+)", spread),
        (
            r"overlap=on",
            _refusal("when gradients would be ready within backprop is not modelled yet."),
        ),
        (
            r"algorithm=.*",
            _refusal("what calls would take by another algorithm is not modelled yet."),
        ),
        (r"ranks=.*", _refusal("how work and collectives grow needs runs of several sizes.")),
        (r"async=.*", _refusal("how updates would interleave is not modelled yet.")),
        (r"arrangement=.*", _refusal("which links machines share is not recorded.")),
        (r"background=.*", _refusal("what a background write costs its rank is not recorded.")),
    )
)
