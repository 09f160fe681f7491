"""Which rank a launcher has made of a process, by the variables that it sets."""

from __future__ import annotations

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


def _read_number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
