"""Which part of a run is wanted: ranks of workers, steps, and a time; and how that is written.

Every verb that takes a part of a run reads ``--ranks``, `--steps` and ``--time`` here, and so does
`tracelens.open`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from tracelens.errors import InvalidArgument
from tracelens.model.durations import LENGTH_OF_TIME, LONGEST_NS, to_ns
from tracelens.model.fmt import join_words
from tracelens.schema.vocabulary import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tracelens.arrays import Array, Flags

Ranges = tuple[tuple[int, int], ...]  # first and last numbers, inclusive

_OPEN: Final = (1 << 31) - 1  # number: the end of a range without one [definition]
_PART: Final = re.compile(r"(\d{1,9})(?:(-)(\d{1,9})?)?")
_TIME: Final = re.compile(rf"{LENGTH_OF_TIME} ?- ?(?:{LENGTH_OF_TIME})?")


@dataclass(frozen=True)
class Choice:
    """Ranks of workers, steps, and a time in ns from the run's begin; null for all of them."""

    rank_ranges: Ranges | None = None
    step_ranges: Ranges | None = None
    time_range_ns: tuple[int, int] | None = None

    @classmethod
    def parse(
        cls, ranks: str | None = None, steps: str | None = None, time: str | None = None
    ) -> Self:
        """Read what was asked for, such as ``0-7,12``, ``200-`` and ``10s-70s``.

        Raises:
            InvalidArgument: it is not written like this, or goes backwards.
        """
        return cls(
            rank_ranges=None if ranks is None else _parse_ranges(ranks, "--ranks", MOST_RANKS),
            step_ranges=None if steps is None else _parse_ranges(steps, "--steps", _OPEN),
            time_range_ns=None if time is None else _parse_time(time),
        )

    @property
    def is_whole_run(self) -> bool:
        """Whether nothing is left out."""
        return self == EVERYTHING

    @property
    def text_by_option(self) -> dict[str, str | None]:
        """What is chosen, as `parse` reads it; null for all."""
        return {
            "ranks": None if self.rank_ranges is None else format_ranges(self.rank_ranges),
            "steps": None if self.step_ranges is None else format_ranges(self.step_ranges),
            "time": None if self.time_range_ns is None else _format_seconds(*self.time_range_ns),
        }

    @property
    def description(self) -> str:
        """What is chosen, in words; empty for all."""
        return describe_choice(self.text_by_option)

    def has_rank(self, rank: int) -> bool:
        """Return True if a worker's rank is chosen."""
        return self.rank_ranges is None or any(
            first <= rank <= last for first, last in self.rank_ranges
        )

    def flag_chosen_steps(self, step_numbers: Array) -> Flags:
        """Return True for each chosen step, [step]."""
        if self.step_ranges is None:
            return np.asarray(step_numbers >= 0)
        is_chosen = np.zeros(step_numbers.shape, np.bool_)
        for first, last in self.step_ranges:
            is_chosen |= (step_numbers >= first) & (step_numbers <= last)
        return is_chosen


EVERYTHING: Final = Choice()


def describe_choice(texts: Mapping[str, str | None]) -> str:
    """Name what is chosen, by `Choice.text_by_option`; empty for all."""
    time = texts["time"]
    texts_of_parts = [
        f"{name} {texts[name]}" for name in ("ranks", "steps") if texts[name] is not None
    ]
    if time is not None:
        texts_of_parts.append(
            f"times from {time[:-1]} s on" if time.endswith("-") else f"times {time} s"
        )
    return join_words(texts_of_parts) if texts_of_parts else ""


def find_empty_range(ranges: Ranges, numbers: Collection[int]) -> str | None:
    """Return the first range, as text, that contains none of `numbers`; None if all contain some."""
    empty_ranges = (
        (first, last)
        for first, last in ranges
        if not any(first <= number <= last for number in numbers)
    )
    first_empty = next(empty_ranges, None)
    return None if first_empty is None else format_ranges((first_empty,))


def format_ranges(ranges: Ranges) -> str:
    """Write ``0-7,12``; one without an end as ``200-``."""
    return ",".join(
        f"{first}" if first == last else f"{first}-{'' if last == _OPEN else last}"
        for first, last in ranges
    )


def to_ranges(numbers: Collection[int]) -> Ranges:
    """Return the ranges of some numbers."""
    return _merge_ranges([(number, number) for number in numbers])


def _parse_ranges(text: str, option: str, number_limit: int) -> Ranges:
    """Read ``0-3,41``; ranges that touch become one."""
    ranges = []
    for range_text in text.split(","):
        match = _PART.fullmatch(range_text.strip())
        first_number = int(match[1]) if match else -1
        last_number = first_number if not match or not match[2] else int(match[3] or _OPEN)
        if not 0 <= first_number < number_limit or number_limit <= last_number < _OPEN:
            raise InvalidArgument(f"{option} {text}: {_EXPECTED}")
        if last_number < first_number:
            raise InvalidArgument(
                f"{option} {text}: {first_number} is not before {last_number}; {_EXPECTED}"
            )
        ranges.append((first_number, last_number))
    return _merge_ranges(ranges)


_EXPECTED: Final = "expected numbers such as 3, 0-7, 0-3,41 or 200-."


def _merge_ranges(ranges: Collection[tuple[int, int]]) -> Ranges:
    """Join ranges that overlap or touch, in order."""
    merged_ranges: list[tuple[int, int]] = []
    for first_number, last_number in sorted(ranges):
        if merged_ranges and first_number <= merged_ranges[-1][1] + 1:
            merged_ranges[-1] = (merged_ranges[-1][0], max(merged_ranges[-1][1], last_number))
        else:
            merged_ranges.append((first_number, last_number))
    return tuple(merged_ranges)


def _parse_time(text: str) -> tuple[int, int]:
    """Read ``12.5-20``, ``10s-70s``, ``1m-`` as begin and end, ns since the run's begin."""
    match = _TIME.fullmatch(text.strip())
    if match:
        # A unit that only the end has is that of the begin, too.
        begin_ns = to_ns(match[1], match[2] or match[4])
        end_ns = to_ns(match[3], match[4]) if match[3] else LONGEST_NS
        if begin_ns < end_ns <= LONGEST_NS:
            return begin_ns, end_ns
    raise InvalidArgument(
        f"--time {text}: expected seconds from the run's begin, such as 12.5-20, 10s-70s, 1m-2m or "
        "30-, the earlier first."
    )


def _format_seconds(begin_ns: int, end_ns: int) -> str:
    end_text = "" if end_ns >= LONGEST_NS else f"{end_ns / 1e9:.9g}"
    return f"{begin_ns / 1e9:.9g}-{end_text}"
