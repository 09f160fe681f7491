"""A small run of a training, drawn at random, from which the document of every format is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

MS: Final = 1_000_000
PHASES: Final = (
    ("data", 1, "load_batch"),
    ("forward", 3, "forward"),
    ("backprop", 5, "backward"),
    ("reduction", 2, "allreduce"),
    ("update", 1, "optimizer"),
)
# Ranks and steps of a run, and how often it is drawn: runs of a thousand ranks take seconds.
SHAPES: Final[dict[tuple[int, int], int]] = {
    (2, 6): 100,
    (3, 4): 100,
    (2, 12): 100,
    (3, 40): 60,
    (1, 5): 20,
    (1, 1): 20,
    (2, 1): 20,
    (0, 0): 10,
    (64, 2): 6,
    (1000, 1): 1,
}


@dataclass(frozen=True)
class Span:
    """One span: times in ns."""

    rank: int
    start: int
    end: int
    kind: str
    name: str
    step: int
    thread: int = 1


def draw_run(random: Random) -> list[Span]:
    """Return the spans of a run, most of them disturbed; some have no rank, one, or a thousand."""
    spans = _sound_run(random)
    for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
        if spans:
            spans = random.choice(_DISTURBANCES)(spans, random)
    return spans[: random.choice([1, 3])] if random.random() < 0.05 else spans


def _sound_run(random: Random) -> list[Span]:
    ((ranks, steps),) = random.choices([*SHAPES], [*SHAPES.values()])
    now_ns = begin_ns = random.choice(
        [0, 5_000 * MS, 1_700_000_000_000 * MS, 4_000_000_000_000 * MS]
    )
    spans: list[Span] = []
    for rank in range(ranks):
        now_ns = begin_ns + random.randrange(MS)
        for step in range(steps):
            slow = 3 if rank == 1 and step > steps // 2 else 1
            inner = []
            step_begin_ns = now_ns
            for kind, length, name in PHASES:
                end = now_ns + int(length * MS * slow * random.uniform(0.9, 1.1))
                inner.append(Span(rank, now_ns, end, kind, name, step))
                now_ns = end
            spans += [Span(rank, step_begin_ns, now_ns, "step", "step", step), *inner]
    return spans


def _scale(spans: list[Span], random: Random) -> list[Span]:
    """Make times short or long, as a wrong unit does."""
    factor = random.choice([0.0, 1e-6, 1e-3, 1e3, 1e6, 1e9])
    first_ns = spans[0].start
    return [
        replace(
            s,
            start=first_ns + int((s.start - first_ns) * factor),
            end=first_ns + int((s.end - first_ns) * factor),
        )
        for s in spans
    ]


def _set_clock_apart(spans: list[Span], random: Random) -> list[Span]:
    """Move the times of a rank, as a wrong clock does."""
    offset_ns = random.choice([1, -1]) * random.choice(
        [MS, 10**12, 10**16, 3 * 10**16, 10**17, 4 * 10**18]
    )
    rank = random.choice(spans).rank
    return [
        replace(s, start=s.start + offset_ns, end=s.end + offset_ns) if s.rank == rank else s
        for s in spans
    ]


def _change_lengths(spans: list[Span], random: Random) -> list[Span]:
    """Make spans of a kind end at once, before they begin, or long after the next one begins."""
    change_ns = random.choice([None, None, -1, 10**9, 10**14, 3 * 10**16])
    kind, share = random.choice(spans).kind, random.choice([1.0, 1.0, 0.1])
    return [
        replace(s, end=s.start if change_ns is None else s.end + change_ns)
        if s.kind == kind and random.random() < share
        else s
        for s in spans
    ]


def _leave_out(spans: list[Span], random: Random) -> list[Span]:
    """Leave out a kind, all but one kind, a share, or what a rank did from a moment on."""
    chosen_span = random.choice(spans)
    way = random.randrange(4)
    is_kept: Callable[[Span], bool] = (
        lambda s: s.kind != chosen_span.kind,
        lambda s: s.kind == chosen_span.kind,
        lambda _: random.random() < 0.5,
        lambda s: s.rank != chosen_span.rank or s.start < chosen_span.start,
    )[way]
    return [s for s in spans if is_kept(s)]


def _number_steps(spans: list[Span], random: Random) -> list[Span]:
    """Number steps otherwise: all alike, far apart, backwards, below zero, from where numbers end."""
    number: Callable[[int], int] = random.choice(
        [
            lambda _: 0,
            lambda step: step * 10**8,
            lambda step: 1000 - step,
            lambda step: -1 - step,
            lambda step: 2**31 - 1 - step,
            lambda _: random.randrange(2**31),
        ]
    )
    return [replace(s, step=number(s.step)) for s in spans]


def _number_ranks(spans: list[Span], random: Random) -> list[Span]:
    """Number ranks otherwise: far apart, from some thousand on, all alike."""
    number: Callable[[int], int] = random.choice(
        [lambda rank: rank * 997, lambda rank: rank + 4000, lambda _: 0, lambda rank: -rank]
    )
    return [replace(s, rank=number(s.rank)) for s in spans]


def _rename(spans: list[Span], random: Random) -> list[Span]:
    """Give all spans of a kind the kind or the name of others."""
    kind, other = random.choice(spans).kind, random.choice(spans)
    return [replace(s, kind=other.kind, name=other.name) if s.kind == kind else s for s in spans]


def _repeat(spans: list[Span], random: Random) -> list[Span]:
    """Record a share of the spans twice, on the same thread or on another one."""
    share, thread = random.choice([1.0, 0.1]), random.choice([1, 2])
    again = [replace(s, thread=thread) for s in spans if random.random() < share]
    return spans + again


_DISTURBANCES: Final = (
    *(_scale, _set_clock_apart, _change_lengths, _change_lengths, _leave_out, _leave_out),
    *(_number_steps, _number_ranks, _rename, _repeat),
)
