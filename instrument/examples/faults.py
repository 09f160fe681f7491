"""Switches that plant a known fault into a training, so that there is a truth to find."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

# The ranks of an example share one machine: a thread each, said before NumPy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PHASES: Final = ("data", "forward", "backprop", "update")
ALWAYS: Final = (0, 10**9)


@dataclass(frozen=True)
class Faults:
    """What is planted; a rank of -1 means nowhere."""

    slow_rank: int
    slow_phase: str
    slow_steps: tuple[int, int]
    slow_ms: float
    kill_rank: int
    kill_step: int

    def check(self, ranks: int, can_be_slow: int | None = None) -> None:
        """End the program if something is planted in a rank that there is not: nothing would happen."""
        slow_ranks = ranks if can_be_slow is None else can_be_slow
        for switch, rank, count in (
            ("--slow-rank", self.slow_rank, slow_ranks),
            ("--kill-rank", self.kill_rank, ranks),
        ):
            if rank >= count:
                raise SystemExit(f"{switch} is {rank}, but there is no such rank: 0 to {count - 1}")

    def slow_down(self, rank: int, phase: str, step: int) -> None:
        """Take longer, if this is the place: called once in the middle of each phase."""
        first, last = self.slow_steps
        if rank == self.slow_rank and phase == self.slow_phase and first <= step <= last:
            time.sleep(self.slow_ms / 1e3)

    def kill(self, rank: int, step: int) -> None:
        """Die as by the out-of-memory killer, if this is the place."""
        if rank == self.kill_rank and step == self.kill_step:
            os.kill(os.getpid(), signal.SIGKILL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the switches to a training's command line."""
    group = parser.add_argument_group("planted faults")
    group.add_argument("--slow-rank", type=int, default=-1, help="this rank is slow")
    group.add_argument("--slow-phase", choices=PHASES, default="backprop", help="in this phase")
    group.add_argument(
        "--slow-steps", type=_steps, default=ALWAYS, metavar="A:B", help="from step A to B"
    )
    group.add_argument("--slow-ms", type=float, default=20.0, help="by so much a step")
    group.add_argument(
        "--slow-loader", type=int, default=-1, metavar="RANK", help="its data loading is slow"
    )
    group.add_argument("--kill-rank", type=int, default=-1, help="this rank is killed (SIGKILL)")
    group.add_argument("--kill-step", type=int, default=-1, help="in the backprop of this step")


def from_arguments(arguments: argparse.Namespace) -> Faults:
    """Gather the switches; `--slow-loader` stands for slow data loading at every step."""
    loader = arguments.slow_loader >= 0
    return Faults(
        slow_rank=arguments.slow_loader if loader else arguments.slow_rank,
        slow_phase="data" if loader else arguments.slow_phase,
        slow_steps=ALWAYS if loader else arguments.slow_steps,
        slow_ms=arguments.slow_ms,
        kill_rank=arguments.kill_rank,
        kill_step=arguments.kill_step,
    )


def _steps(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last or first)
