"""Archives of OTF2 as Score-P writes them, by OTF2's own library, of what a test says that ranks did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

otf2: Any = pytest.importorskip("otf2")
enums: Any = otf2.enums

MS: Final = 1_000_000
_FIRST: Final = 5_000_000_000  # ticks, as clocks seldom begin at zero
_RESOLUTION: Final = 1_000_000_000


@dataclass
class Rank:
    """What a rank did, as (time, type of event, what the library's writer is given), times in ns."""

    events: list[tuple[int, str, tuple[Any, ...]]] = field(default_factory=list)

    def region(self, begin: int, end: int, name: str) -> None:
        """Add a region of the user, or a call of MPI."""
        self.events += [(begin, "enter", (name,)), (end, "leave", (name,))]

    def allreduce(self, begin: int, end: int, nbytes: int) -> None:
        """Add a call of MPI_Allreduce by all."""
        self.events += [
            (begin, "enter", ("MPI_Allreduce",)),
            (begin, "mpi_collective_begin", ()),
            (end, "mpi_collective_end", ("allreduce", "world", 0xFFFFFFFF, nbytes, nbytes)),
            (end, "leave", ("MPI_Allreduce",)),
        ]

    def message(self, at: int, event: str, *values: int) -> None:
        """Add an event of a message: peer, tag, bytes and request, or the request alone."""
        told = (values[0], "world", *values[1:]) if len(values) > 1 else values
        self.events.append((at, event, told))


class _Definitions:
    """What events name, each written once: processes with their thread, regions, the communicator."""

    def __init__(self, registry: Any, names: list[str], *, mpi: bool) -> None:
        self._registry = registry
        self._regions: dict[str, Any] = {}
        node = registry.system_tree_node("node0", class_name="node")
        processes = [
            registry.location_group(
                name, system_tree_parent=node, location_group_type=enums.LocationGroupType.PROCESS
            )
            for name in names
        ]
        self.places = [registry.location("Master thread", group=process) for process in processes]
        self._world = self._communicator() if mpi else None
        member = registry.metric_member("instructions", value_type=enums.Type.UINT64)
        self.metric = registry.metric_class((member,))

    def _communicator(self) -> Any:
        kinds, mpi = enums.GroupType, enums.Paradigm.MPI
        group = self._registry.group
        everybody = group("", kinds.COMM_LOCATIONS, mpi, members=tuple(self.places))
        members = group("", kinds.COMM_GROUP, mpi, members=everybody.members)
        return self._registry.comm("MPI_COMM_WORLD", members)

    def to_written(self, value: Any) -> Any:
        """Return what the library's writer takes for a value of an event."""
        if not isinstance(value, str):
            return value
        if value == "world":
            return self._world
        if value == "allreduce":
            return enums.CollectiveOp.ALLREDUCE
        return self._regions.setdefault(value, None) or self._region(value)

    def _region(self, name: str) -> Any:
        roles, paradigms = enums.RegionRole, enums.Paradigm
        role = roles.COLL_ALL2ALL if name == "MPI_Allreduce" else roles.FUNCTION
        paradigm = paradigms.MPI if name.startswith("MPI_") else paradigms.USER
        self._regions[name] = self._registry.region(name, region_role=role, paradigm=paradigm)
        return self._regions[name]


def write(
    folder: Path,
    ranks: list[Rank],
    *,
    mpi: bool = True,
    names: tuple[str, ...] = (),
    metrics: int = 0,
) -> Path:
    """Write an archive; return its anchor. `metrics` are recorded by rank 0 after all else."""
    called = [*names] or [f"MPI Rank {rank}" for rank in range(len(ranks))]
    with otf2.writer.open(str(folder), timer_resolution=_RESOLUTION) as archive:
        definitions = _Definitions(archive.definitions, called, mpi=mpi)
        for rank, place in zip(ranks, definitions.places, strict=True):
            writer = archive.event_writer_from_location(place)
            events = sorted(rank.events, key=lambda event: event[0])
            for time, kind, values in events:
                getattr(writer, kind)(_FIRST + time, *map(definitions.to_written, values))
            for number in range(metrics if rank is ranks[0] else 0):
                writer.metric(_FIRST + events[-1][0] + number, definitions.metric, (number,))
    return folder / "traces.otf2"


def training(
    ranks: int = 4, steps: int = 40, slow: int | None = None, factor: float = 1.4
) -> list[Rank]:
    """Return a training of which rank `slow` takes `factor` times as long for backprop."""
    written_ranks = []
    for number in range(ranks):
        rank = Rank()
        for step in range(steps):
            begin_ns = step * 30 * MS + number * 1000
            computed = begin_ns + 6 * MS + round(10 * MS * (factor if number == slow else 1))
            computed += step * 100
            reduced = step * 30 * MS + 26 * MS
            rank.events.append((begin_ns, "enter", (f"step {step}",)))
            rank.region(begin_ns + 1000, begin_ns + 6 * MS, "forward")
            rank.region(begin_ns + 6 * MS, computed, "backward")
            rank.allreduce(computed, reduced, 4096)
            rank.region(reduced, reduced + MS, "optimizer")
            rank.events.append((reduced + MS + 10, "leave", (f"step {step}",)))
        written_ranks.append(rank)
    return written_ranks
