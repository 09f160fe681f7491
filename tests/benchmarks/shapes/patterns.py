"""In which ranks and steps a loss is: weights of ranks x steps, zero where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.shapes.noise import Grid, Setting
    from numpy.typing import NDArray

    StepPattern = Callable[[Setting], Grid]
    Pattern = Callable[[Setting], Grid]

ONSET: Final = 0.45  # share of the run after which a loss begins
EPOCHS: Final = 4


def mark(condition: Any) -> Grid:
    """Return 1 where a condition holds, 0 elsewhere."""
    return np.asarray(condition, dtype=np.float64)


def in_every_step(setting: Setting) -> Grid:
    return np.ones(setting.steps)


def in_two_blocks(setting: Setting) -> Grid:
    """Two stretches, each a sixth of the run."""
    steps = np.arange(setting.steps) / setting.steps
    return mark(((steps >= 0.2) & (steps < 0.37)) | ((steps >= 0.6) & (steps < 0.77)))


def in_every_tenth_step(setting: Setting) -> Grid:
    return mark(np.arange(setting.steps) % 10 == 7)


def in_one_step(setting: Setting) -> Grid:
    return mark(np.arange(setting.steps) == int(0.57 * setting.steps))


def from_a_step_on(setting: Setting) -> Grid:
    return mark(np.arange(setting.steps) >= ONSET * setting.steps)


def growing(setting: Setting) -> Grid:
    """From nothing in the first fifth of the run to its full size at the end."""
    return np.clip((np.arange(setting.steps) / setting.steps - 0.2) / 0.8, 0, None)


def at_epoch_borders(setting: Setting) -> Grid:
    """All ranks begin an epoch; the first one begins with the run, and is left out."""
    length = setting.steps // EPOCHS
    steps = np.arange(setting.steps)
    return mark((steps % length == 0) & (steps > 0))


def in_scattered_steps(setting: Setting) -> Grid:
    """A tenth of the steps, at random."""
    order = setting.random("scattered").permutation(setting.steps)
    return mark(order < setting.steps // 10)


def in_the_middle(setting: Setting) -> Grid:
    """A stretch of a third of the run."""
    steps = np.arange(setting.steps) / setting.steps
    return mark((steps >= 0.4) & (steps < 0.73))


STEP_PATTERNS: Final = {
    "every_step": in_every_step,
    "two_blocks": in_two_blocks,
    "every_tenth_step": in_every_tenth_step,
    "one_step": in_one_step,
    "from_a_step_on": from_a_step_on,
    "growing": growing,
}


def choose_rank(setting: Setting) -> int:
    return int(setting.random("culprit").integers(setting.ranks))


def in_one_rank(steps: StepPattern) -> Pattern:
    def weigh(setting: Setting) -> Grid:
        weights = np.zeros((setting.ranks, setting.steps))
        weights[choose_rank(setting)] = steps(setting)
        return weights

    return weigh


def in_all_ranks(steps: StepPattern) -> Pattern:
    return lambda setting: np.tile(steps(setting), (setting.ranks, 1))


def in_half_of_the_ranks(steps: StepPattern) -> Pattern:
    def weigh(setting: Setting) -> Grid:
        weights = np.zeros((setting.ranks, setting.steps))
        half = setting.random("half").permutation(setting.ranks)[: setting.ranks // 2]
        weights[half] = steps(setting)
        return weights

    return weigh


def in_rank_0(steps: StepPattern) -> Pattern:
    def weigh(setting: Setting) -> Grid:
        weights = np.zeros((setting.ranks, setting.steps))
        weights[0] = steps(setting)
        return weights

    return weigh


def weigh_turns(setting: Setting, rank_of_step: NDArray[np.int64]) -> Grid:
    """Return 1 where it is the turn of a rank; -1 is no rank's turn."""
    return mark(np.arange(setting.ranks)[:, None] == rank_of_step[None, :])


def round_robin(setting: Setting) -> Grid:
    """Another rank in each step, one after the other."""
    return weigh_turns(setting, np.arange(setting.steps) % setting.ranks)


def random_rank(setting: Setting) -> Grid:
    """Another rank in each step, at random."""
    return weigh_turns(setting, setting.random("turns").integers(setting.ranks, size=setting.steps))


def blocks_in_turns(setting: Setting) -> Grid:
    """Each rank has a stretch of the run of its own."""
    return weigh_turns(setting, np.arange(setting.steps) * setting.ranks // setting.steps)


def rare_turns(setting: Setting) -> Grid:
    """Each rank has a few steps of its own, at random; a quarter of all steps."""
    turns = setting.random("turns").integers(setting.ranks, size=setting.steps)
    return weigh_turns(
        setting, np.where(setting.random("rare").random(setting.steps) < 0.25, turns, -1)
    )


def regular_turns(setting: Setting) -> Grid:
    """Each rank pauses in every 20th step, each at another one."""
    steps = np.arange(setting.steps)[None, :]
    offsets = (20 // setting.ranks * np.arange(setting.ranks))[:, None]
    return mark((steps + offsets) % 20 == 19)


def two_ranks_at_two_times(setting: Setting) -> Grid:
    """One rank in the second fifth of the run, another one in the last two fifths."""
    weights = np.zeros((setting.ranks, setting.steps))
    first, second = setting.random("two").permutation(setting.ranks)[:2]
    steps = np.arange(setting.steps) / setting.steps
    weights[first] = (steps >= 0.15) & (steps < 0.4)
    weights[second] = steps >= 0.65
    return weights
