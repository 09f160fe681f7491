"""The truth of a labelled run: what an honest verdict on it would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.labelled.recording import Recording
    from benchmarks.labelled.setting import Floats, Times

HEALTHY: Final = "none"


@dataclass(frozen=True)
class Label:
    """What is planted: the kind of finding that names it, or `HEALTHY`.

    Empty fields are not asked for. `saving` is what the same run without it is shorter by, as a share
    of the job. `also` are further kinds that would be true; `anyone` lets a finding name some of `ranks`
    only; not `priced` means that what fixing it saves depends on how.
    """

    verdict: str = HEALTHY
    opportunity: bool = False
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    saving: float | None = None
    also: tuple[str, ...] = ()
    anyone: bool = False
    priced: bool = True


@dataclass(frozen=True)
class Seen:
    """What the rules of other tools look at: own times by phase, and raw arrivals, [step, rank]."""

    phases: dict[str, Floats]
    enter_ns: Times


@dataclass(frozen=True)
class Case:
    """A labelled run; `seen` is null where no other tool's rule applies.

    `through_files` must be read from files, as `damage` bytes are cut off the end of one process's.
    """

    recording: Recording
    label: Label
    seen: Seen | None = None
    damaged: int | None = None
    through_files: bool = False
