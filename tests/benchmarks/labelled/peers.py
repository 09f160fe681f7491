"""What other tools' rules would say about the same run, implemented from their public description.

``HTA``: Holistic Trace Analysis 0.6, "potential stragglers" (hta/analyzers/straggler.py): in every
iteration the two ranks that start the communication kernel latest are marked, and the two ranks with
most marks are returned, always. Times are as recorded.
``NVRx``: nvidia-resiliency-ext, straggler detection: a rank's score is the weighted mean over sections
of the fastest rank's median / its own; below 0.75 it is a straggler. Reports are made every 100 steps.
``Megatron``: Megatron-LM, StragglerDetector: names the rank with the longest time in every report, here
every 100 steps; it does not judge whether that is long.
``mean + 3 sigma``: the mean of a rank's step times exceeds the mean of all by three deviations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.label import Seen
    from benchmarks.labelled.setting import Floats

CANDIDATES: Final = 2
SCORE: Final = 0.75
REPORT_STEPS: Final = 100
SIGMAS: Final = 3.0


def hta(seen: Seen) -> set[int]:
    """Name the ranks that most often start communication last, by the clocks as they are."""
    latest = np.argsort(seen.enter_ns, axis=1)[:, -CANDIDATES:]
    marks = np.bincount(latest.ravel(), minlength=seen.enter_ns.shape[1])
    return {int(rank) for rank in np.argsort(marks, kind="stable")[-CANDIDATES:]}


def nvrx(seen: Seen) -> set[int]:
    """Name the ranks whose relative score is below the threshold in any report."""
    named_ranks: set[int] = set()
    for part in _reports(seen):
        medians = np.stack([np.median(values, axis=0) for values in part])
        weights = np.stack([values.sum(axis=0) for values in part])
        scores = medians.min(axis=1, keepdims=True) / np.maximum(medians, 1e-12)
        score = (scores * weights).sum(axis=0) / weights.sum(axis=0)
        named_ranks |= {int(rank) for rank in np.flatnonzero(score < SCORE)}
    return named_ranks


def megatron(seen: Seen) -> set[int]:
    """Name the slowest rank of every report."""
    return {int(np.argmax(np.sum(part, axis=(0, 1)))) for part in _reports(seen)}


def three_sigma(seen: Seen) -> set[int]:
    """Name the ranks whose mean is far out among the ranks."""
    means = np.sum([*seen.phases.values()], axis=0).mean(axis=0)
    return {int(rank) for rank in np.flatnonzero(means > means.mean() + SIGMAS * means.std())}


def _reports(observed: Seen) -> list[list[Floats]]:
    """Return the phases' times of each report."""
    steps = len(observed.enter_ns)
    count = max(1, steps // REPORT_STEPS)
    rows = np.array_split(np.arange(steps), count)
    return [[values[part] for values in observed.phases.values()] for part in rows]


PEERS: Final[dict[str, Callable[[Seen], set[int]]]] = {
    "HTA": hta,
    "NVRx": nvrx,
    "Megatron": megatron,
    "mean + 3 sigma": three_sigma,
}
