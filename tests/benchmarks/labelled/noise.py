"""How the time of equal ranks varies: two families of noise, each mild or harsh.

``lognormal`` remembers (AR(1) from step to step) and has lognormal blips; detectors may be tuned on it.
``pareto`` has independent gamma noise, spikes with a Pareto tail, and a daemon that wakes up on every
host at a fixed period; nothing is ever tuned on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from benchmarks.labelled.setting import Family, Floats, Level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.labelled.setting import Family, Floats, Level, Setting

LONGEST_PERIOD: Final = 60  # steps between two visits of the daemon


@dataclass(frozen=True)
class Strength:
    """How strong noise is; all but `memory` and `often` are shares of what they act on.

    `sigma` is the deviation of a rank's whole step from step to step, `memory` its correlation with
    the step before, `spread` lasts for the run, `common` is shared by all ranks of a step; `often`
    steps of a rank have a spike of about `spike` of a step, and the daemon takes `daemon` of one.
    """

    sigma: float
    memory: float = 0.0
    spread: float = 0.005
    common: float = 0.03
    often: float = 0.0
    spike: float = 0.0
    daemon: float = 0.0


STRENGTHS: Final[dict[tuple[Family, Level], Strength]] = {
    ("lognormal", "mild"): Strength(0.03, memory=0.6, often=0.002, spike=0.1),
    ("lognormal", "harsh"): Strength(0.04, memory=0.8, common=0.05, often=0.05, spike=0.25),
    ("pareto", "mild"): Strength(0.025, often=0.01, spike=0.04, daemon=0.03),
    ("pareto", "harsh"): Strength(0.05, common=0.05, often=0.05, spike=0.1, daemon=0.15),
}
_SHARED: Final = 0.6  # of the variance hits all phases of a step alike


def vary(
    setting: Setting, phase_means: Mapping[str, float], strength: Strength | None = None
) -> dict[str, Floats]:
    """Draw the duration of each phase, [step, rank], in the unit of `phase_means`."""
    strength = strength or STRENGTHS[setting.family, setting.level]
    whole = sum(phase_means.values())
    alone = sum((mean / whole) ** 2 for mean in phase_means.values())
    level = _level(setting, strength)
    single = strength.sigma * np.sqrt((1 - _SHARED) / alone)
    times = {
        name: mean * level * np.exp(single * _draw_noise(setting, f"noise of {name}", strength))
        for name, mean in phase_means.items()
    }
    _disturb(setting, phase_means, strength, times)
    return times


def _level(setting: Setting, strength: Strength) -> Floats:
    """Draw what hits all phases of a rank's step alike."""
    spread = strength.spread * setting.stream("spread").standard_normal(setting.ranks)
    common = strength.common * setting.stream("common").standard_normal((setting.steps, 1))
    shared = np.sqrt(_SHARED) * _draw_noise(setting, "shared", strength)
    return np.asarray(np.exp(spread + common + strength.sigma * shared))


def _disturb(
    setting: Setting, phase_means: Mapping[str, float], strength: Strength, times: dict[str, Floats]
) -> None:
    """Add spikes, each to one phase by its length, and the daemon, to the longest phase."""
    draw = setting.stream("spikes")
    shape = (setting.steps, setting.ranks)
    mean_sum = sum(phase_means.values())
    hit = draw.random(shape) < strength.often
    where = draw.choice(len(phase_means), shape, p=np.array(list(phase_means.values())) / mean_sum)
    spikes = hit * strength.spike * mean_sum * _spikes(setting, draw)
    for index, name in enumerate(phase_means):
        times[name] += np.where(where == index, spikes, 0.0)
    largest = max(phase_means, key=lambda name: phase_means[name])
    times[largest] += strength.daemon * mean_sum * _daemon(setting)


def _draw_noise(setting: Setting, purpose: str, strength: Strength) -> Floats:
    """Draw noise of unit deviation: remembering normal, or independent log-gamma."""
    from scipy.signal import lfilter  # noqa: PLC0415 - takes a second

    draw = setting.stream(purpose)
    shape = (setting.steps, setting.ranks)
    if setting.family == "pareto":
        heavy = 6.0  # a gamma of this shape leans to the right
        return np.asarray((draw.gamma(heavy, 1.0, shape) - heavy) / np.sqrt(heavy))
    rho = strength.memory
    white = draw.standard_normal(shape)
    white[1:] *= np.sqrt(1 - rho**2)
    return np.asarray(lfilter([1.0], [1.0, -rho], white, axis=0))


def _spikes(setting: Setting, draw: np.random.Generator) -> Floats:
    shape = (setting.steps, setting.ranks)
    if setting.family == "pareto":
        return np.minimum(1 + draw.pareto(2.2, shape), 20.0)
    return draw.lognormal(0.0, 0.7, shape)


def _daemon(setting: Setting) -> Floats:
    """Say when the daemon runs, [step, rank]: equally often on every host, at its own phase."""
    if setting.family != "pareto":
        return np.zeros((setting.steps, setting.ranks))
    draw = setting.stream("daemon")
    period = int(draw.integers(LONGEST_PERIOD // 3, LONGEST_PERIOD))
    phase = draw.integers(period, size=setting.hosts)
    host = np.arange(setting.ranks) // setting.per_host
    turn = (np.arange(setting.steps)[:, None] - phase[host]) % period
    return np.asarray(turn < 2, np.float64)
