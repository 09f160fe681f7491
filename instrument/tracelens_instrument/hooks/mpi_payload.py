"""How many bytes a call carries for this rank, from what mpi4py takes as a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from tracelens.schema.record import NO_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_instrument.hooks.mpi_table import Collective

__all__ = ["of_buffer", "of_call"]


def of_call(row: Collective, values: Mapping[str, Any], size: int) -> int:
    """Return this rank's payload in a collective among `size` ranks."""
    if row.payload is None:
        return NO_BYTES
    buffer = values.get(row.payload)
    if not _absent(buffer):
        return of_buffer(buffer)
    if row.instead is None:
        return NO_BYTES
    whole = of_buffer(values.get(row.instead))
    return whole // size if row.shared and whole != NO_BYTES else whole


def of_buffer(buffer: Any) -> int:
    """Return the bytes of a buffer, or of a part: (data, count, displacement, datatype) or less.

    `NO_BYTES` where it cannot be told.
    """
    try:
        if isinstance(buffer, list | tuple):
            return _of_specification(buffer)
        return _of_data(buffer)
    except (TypeError, ValueError, AttributeError, KeyError, BufferError):
        return NO_BYTES


def _absent(buffer: Any) -> bool:
    return buffer is None or buffer is MPI.IN_PLACE


def _of_data(data: Any) -> int:
    nbytes = getattr(data, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else memoryview(data).nbytes


def _of_specification(parts: Sequence[Any]) -> int:
    """Multiply count by size of the datatype; without a count it is the whole buffer."""
    data, *rest = parts
    datatype = rest.pop() if rest and isinstance(rest[-1], MPI.Datatype | str) else None
    count = _count(rest[0]) if rest and rest[0] is not None else None
    if count is None:
        return _of_data(data)
    if datatype is None:
        return count * memoryview(data).itemsize
    known = MPI.Datatype.fromcode(datatype) if isinstance(datatype, str) else datatype
    return count * known.Get_size()


def _count(given: Any) -> int | None:
    """Add up counts: a number or numbers, or either of them with displacements, in a tuple."""
    counts = given[0] if isinstance(given, tuple) else given
    if counts is None:
        return None
    return sum(map(int, counts)) if hasattr(counts, "__len__") else int(counts)
