"""What is right to say of each program, written before any of them was recorded.

By docs/report.md: one cause that hits a rank, or some steps, is a fault; one that all ranks have in each
step is a bottleneck; code that no span covers on all ranks makes a run inconclusive.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ALL: Final = "all"  # no rank alone
LAST: Final = "last"
ANY_PLACE: Final = ""
HOLDS_UP: Final = ("fault", "bottleneck")
BUSY: Final = "machine was busy"


class Truth(NamedTuple):
    """The verdicts that are right, and the place that must be named."""

    verdicts: tuple[str, ...]
    rank: int | str | None = None  # None: any
    place: str = ANY_PLACE  # regular expression of the headline or the reason
    steps: tuple[int, int] | None = None  # first and last; None: any


class Program(NamedTuple):
    """How a program is started, and what is right to say of it."""

    launcher: str
    faulty: Truth
    healthy: Truth = Truth(("healthy",))
    ranks: tuple[int, ...] = (2, 3)


# Three ranks that wait actively on two cores wait for cores: to say so is right, too.
MPI_HEALTHY: Final = Truth(("healthy",), place=BUSY)
# The forward of a model that is not wrapped in DDP has no span: by the definition, that is inconclusive.
PLAIN_MODEL: Final = Truth(("healthy", "inconclusive"), ALL)
BUBBLE: Final = Truth(("healthy", "bottleneck"), ALL)
SERVING: Final = Truth(("healthy", "bottleneck", "inconclusive"), ALL)
COMMUNICATION: Final = Truth(("bottleneck",), ALL, "communication|transfer|small messages")

PROGRAMS: Final = {
    "ddp_tutorial": Program("torch", Truth(("fault",), 1, "forward", (60, 119))),
    "ddp_loader": Program("torch", Truth(("fault",), 0, "data|load|input", (0, 99))),
    "loader_workers": Program("torch", Truth(HOLDS_UP, ALL, "data|load|input")),
    "loader_turns": Program("torch", Truth(HOLDS_UP, ALL, "data|load|input")),
    "grad_accumulation": Program("torch", COMMUNICATION),
    "many_small": Program("torch", COMMUNICATION, PLAIN_MODEL),
    # The last checkpoint comes after the last step, 99, and delays no other one.
    "checkpoints": Program("torch", Truth(HOLDS_UP, 0, "checkpoint|uninstrumented", (19, 89))),
    "evaluation": Program("torch", Truth((*HOLDS_UP, "inconclusive"), ALL)),
    "ema": Program("torch", Truth(("bottleneck", "inconclusive"), ALL, "update")),
    "uneven_lengths": Program("torch", Truth(HOLDS_UP, ALL, "imbalance|more work|uneven")),
    "gc_turns": Program("torch", Truth(HOLDS_UP, ALL, "GC|garbage")),
    "slow_steps": Program(
        "torch", Truth(("fault",), 1, "uninstrumented|update", (3, 94)), PLAIN_MODEL
    ),
    "debug_mode": Program("torch", Truth(("fault",), ALL, "forward", (50, 99))),
    "fsdp2": Program("torch", Truth(("fault",), 1, "forward", (0, 59))),
    "huge_gradient": Program("torch", COMMUNICATION),
    "kmeans": Program("torch", Truth(("fault",), 0, steps=(0, 99))),
    "jacobi": Program("mpi", Truth(("fault",), 0, steps=(0, 119)), MPI_HEALTHY),
    "monte_carlo": Program("mpi", COMMUNICATION, MPI_HEALTHY),
    "sweep": Program("mpi", Truth(("fault",), LAST, steps=(0, 79)), MPI_HEALTHY),
    # A step may be a micro-batch or ten of them: no steps are asked for.
    "pipeline": Program("mpi", Truth(HOLDS_UP, 1), BUBBLE),
    "master_worker": Program("mpi", Truth((*HOLDS_UP, "inconclusive"), 1), SERVING, ranks=(3,)),
    "power_iteration": Program("mpi", Truth(("fault",), 0, steps=(40, 79)), MPI_HEALTHY),
}
