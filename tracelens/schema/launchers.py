"""Which rank a launcher has made of a process, by the variables that it sets.

The Python of each rank reports its start to the `record` that runs the launcher, in a line of a file.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

# The first launcher whose rank variable is set counts: (rank, world, local rank).
_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    ("PMIX_RANK", "PMIX_SIZE", "PMIX_LOCAL_RANK"),  # PRRTE and others
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),  # srun
)
_MAX_DIGITS: Final = 9  # digits: of a rank; a longer number is none [policy]


def read_launcher(environment: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Read (rank, world, local rank) as the launcher set them; None without a launcher."""
    for rank_variable, world_variable, local_rank_variable in _LAUNCHERS:
        rank = _read_number(environment, rank_variable)
        if rank is not None:
            world = _read_number(environment, world_variable) or 1
            return rank, world, _read_number(environment, local_rank_variable) or 0
    return None


STARTED_PROCESS: Final = "process of rank: "  # how a line begins that reports the start of a rank


@dataclass(frozen=True)
class StartedProcess:
    """A process of a rank whose Python has started; `started_ns` is wall time."""

    rank: int
    world: int
    pid: int
    started_ns: int

    def to_line(self) -> str:
        """Return it as a line, without its end."""
        return f"{STARTED_PROCESS}{self.rank}/{self.world}/{self.pid}/{self.started_ns}"

    @classmethod
    def parse(cls, line: str) -> StartedProcess | None:
        """Read the entry from a line; None if the line is of another kind."""
        if not line.startswith(STARTED_PROCESS):
            return None
        try:
            rank, world, pid, started_ns = map(int, line.removeprefix(STARTED_PROCESS).split("/"))
        except ValueError:
            return None
        return cls(rank, world, pid, started_ns)


def _read_number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
