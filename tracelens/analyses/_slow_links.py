"""Finds links that take longer than others for the same bytes, as `_detector.py` finds late ranks.

Links between hosts are held against each other; within a host messages go through memory, and slow
ones mean ranks that share cores. Each message is expected to take what messages of its size take; what a
link takes beyond the median link of the step, in shares of a step, is searched for windows that chance
does not explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.analyses import _detector
from tracelens.analyses._interval import course
from tracelens.analyses._own_time import WARM_UP

if TYPE_CHECKING:
    from tracelens.analyses.result import Pattern
    from tracelens.trace import Trace

__all__ = ["SlowLink", "find"]

Floats = npt.NDArray[np.float64]

FEWEST_STEPS: Final = 30
FEWEST_LINKS: Final = 3  # fewer do not say what is normal
ENOUGH: Final = 0.25  # of the messages that the median link has in a step, for a link to be judged
FALSE_RATE: Final = 0.005
LEAST_EFFECT: Final = 0.02  # of a step
LEAST_RATIO: Final = 1.5  # times what others take
SIGMAS: Final = 3  # of the clocks' uncertainty, by message
_LINK: Final = ("sender", "receiver")


@dataclass(frozen=True)
class SlowLink:
    """A link, the steps (numbers, ascending) in which it is slow, and by what in each of them.

    `ratio` is how many times as long as others its messages take, `excess_ns` what it loses, `p` the
    chance that it is none.
    """

    sender: int
    receiver: int
    steps: npt.NDArray[np.int64]
    ratio: Floats
    excess_ns: Floats
    pattern: Pattern
    p: float


def find(trace: Trace, hops: pl.DataFrame) -> list[SlowLink]:
    """Search all links."""
    if hops.is_empty():
        return []
    host = trace.workers.select("rank", "host")
    ends = hops.join(host, left_on="sender", right_on="rank").join(
        host, left_on="receiver", right_on="rank", suffix="_there"
    )
    sheet = _Sheet.of(ends.filter(pl.col("host").ne_missing(pl.col("host_there"))))
    length = (trace.steps["end_ns"] - trace.steps["start_ns"]).median()
    steps, links = sheet.taken.shape
    if steps < FEWEST_STEPS + WARM_UP or links < FEWEST_LINKS or not isinstance(length, float):
        return []
    excess = sheet.excess / max(length, 1.0)
    scan = _detector.scan(excess[WARM_UP:])
    holds = _detector.discoveries(scan.p, FALSE_RATE) & (scan.mean >= LEAST_EFFECT)
    found = []
    for link in np.flatnonzero(holds):
        window = int(scan.first[link]), int(scan.last[link])
        slow = _followed(sheet, excess, int(link), window, float(scan.p[link]))
        if slow and _visible(sheet, int(link), slow, trace.uncertainty_ns):
            found.append(slow)
    return found


@dataclass(frozen=True)
class _Sheet:
    """What links took and should have taken, [step, link], nanoseconds; 0 where nothing was sent."""

    steps: npt.NDArray[np.int64]
    links: list[tuple[int, int]]
    taken: Floats
    expected: Floats
    messages: Floats

    @classmethod
    def of(cls, hops: pl.DataFrame) -> _Sheet:
        size = (pl.col("bytes").fill_null(0) + 1).log(2).mul(2).round()
        usual = hops.with_columns(size=size).with_columns(usual=pl.col("ns").median().over("size"))
        sums = usual.group_by("step", *_LINK).agg(pl.col("ns", "usual").sum(), messages=pl.len())
        steps = sums["step"].unique().sort()
        links = sums.select(_LINK).unique().sort(_LINK)
        places = sums.join(links.with_row_index("column"), on=_LINK)
        cells = steps.search_sorted(places["step"]).to_numpy(), places["column"].to_numpy()
        matrices = np.zeros((3, len(steps), links.height))
        for matrix, name in zip(matrices, ("ns", "usual", "messages"), strict=True):
            matrix[cells] = places[name].to_numpy()
        return cls(steps.to_numpy().astype(np.int64), list(links.iter_rows()), *matrices)

    @property
    def ratio(self) -> Floats:
        """How many times as long as usual each link takes; nan where too little is known of it."""
        enough = ENOUGH * np.median(self.messages, axis=1, keepdims=True)
        sent = (self.expected > 0) & (self.messages >= enough)
        return np.where(sent, self.taken / np.where(sent, self.expected, 1), np.nan)

    @property
    def excess(self) -> Floats:
        """What each link takes beyond the step's median link, nanoseconds."""
        ratio = self.ratio
        typical = np.nan_to_num(np.nanmedian(ratio, axis=1, keepdims=True), nan=1.0)
        return np.nan_to_num((ratio - typical) * self.expected, nan=0.0)


def _followed(
    sheet: _Sheet, excess: Floats, link: int, window: tuple[int, int], p: float
) -> SlowLink | None:
    """Follow a link from edge to edge."""
    shape = course(excess[WARM_UP:, link], *window)
    first, last = shape.first + WARM_UP, shape.last + WARM_UP
    if shape.first == 0 and np.median(excess[:WARM_UP, link]) > shape.level / 2:
        first = 0
    rows = slice(first, last + 1)
    others = np.delete(sheet.ratio[rows], link, axis=1)
    ratio = sheet.ratio[rows, link] / np.nanmedian(others, axis=1)
    if np.nanmedian(ratio) < LEAST_RATIO:
        return None
    lost = np.maximum(sheet.excess[rows, link], 0)
    numbers = sheet.links[link]
    return SlowLink(
        *numbers, sheet.steps[rows], np.nan_to_num(ratio, nan=1.0), lost, shape.pattern, p
    )


def _visible(sheet: _Sheet, link: int, slow: SlowLink, uncertainty_ns: int) -> bool:
    """Say whether what a message loses is more than clocks may be wrong by."""
    messages = sheet.messages[np.isin(sheet.steps, slow.steps), link].sum()
    return bool(slow.excess_ns.sum() / max(messages, 1) > SIGMAS * uncertainty_ns)
