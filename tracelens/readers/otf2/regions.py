"""The meaning of regions of an OTF2 archive: calls of MPI, phases of training, waiting, or code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.readers.words import (
    USER_CODE,
    find_kernel_meaning,
    find_meaning,
    normalize_word,
    parse_step_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

# By the numbers of OTF2's CollectiveOp; others (scans, creating handles) are of no operation of ours.
COLLECTIVES: Final = {
    0: "barrier", 1: "broadcast", 2: "gather", 3: "gather", 4: "scatter", 5: "scatter",
    6: "all_gather", 7: "all_gather", 8: "all_to_all", 9: "all_to_all", 10: "all_to_all",
    11: "allreduce", 12: "reduce", 13: "reduce_scatter", 16: "reduce_scatter",
}  # fmt: skip
_PHASES: Final = ("step", "data", "forward", "backprop", "update", "checkpoint")
# Kind and operation of calls of MPI for one or two ranks, by their normalized names.
_CALLS_OF_MPI: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("mpiwait", "mpiwaitall", "mpiwaitany", "mpiwaitsome"), ("wait", "request_wait")
    ),
    **dict.fromkeys(("mpisend", "mpibsend", "mpissend", "mpirsend"), ("reduction", "send")),
    **dict.fromkeys(
        ("mpirecv", "mpimrecv", "mpisendrecv", "mpisendrecvreplace"), ("reduction", "recv")
    ),
}
_ROLES_OF_WAITING: Final = ("BARRIER", "IMPLICIT_BARRIER", "TASK_WAIT", "THREAD_WAIT")
_ROLES_OF_COLLECTIVES: Final = ("COLL_ONE2ALL", "COLL_ALL2ONE", "COLL_ALL2ALL", "BARRIER")
_PARADIGMS_OF_DEVICES: Final = ("CUDA", "HIP", "OPENCL")
_NAMES_OF_SYNCHRONIZATION: Final = ("synchronize", "finish", "waitforevents")
Meaning = tuple[str, str | None, int | None]  # kind, operation, number of the step


def build_region_table(regions: Iterable[tuple[int, str, str, str]]) -> pl.DataFrame:
    """Return the meaning of each region: columns region, name, kind, op, step.

    Args:
        regions: Number, name, paradigm and role of each, in OTF2's words.
    """
    rows = [(number, name, *_translate_region(name, *facts)) for number, name, *facts in regions]
    schema = {"region": pl.Int64, "name": pl.String, "kind": pl.String, "op": pl.String}
    table = pl.DataFrame(rows, schema=schema | {"step": pl.Int32}, orient="row")
    return table.unique("region", keep="first")


def build_kernel_table(regions: pl.DataFrame) -> pl.DataFrame:
    """Return the meaning of the same regions where a device ran them: kernels."""
    names = regions["name"].unique()
    rows = [(name, *(find_kernel_meaning(name) or ("device", None))) for name in names]
    schema = {"name": pl.String, "kind": pl.String, "op": pl.String}
    kernels = pl.DataFrame(rows, schema=schema, orient="row")
    return regions.select("region", "name").join(kernels, on="name", how="left")


def _translate_region(name: str, paradigm: str, role: str) -> Meaning:
    """Return kind, operation and step of a region; `paradigm` and `role` are words of OTF2."""
    if paradigm == "MPI":
        return _translate_mpi_call(name, role)
    synchronizes = normalize_word(name).endswith(_NAMES_OF_SYNCHRONIZATION)
    if role in _ROLES_OF_WAITING or (paradigm in _PARADIGMS_OF_DEVICES and synchronizes):
        return "wait", None, None
    step = parse_step_number(name) if paradigm == "USER" else None
    if step is not None:
        return "step", None, step
    kind, op = (find_meaning(name) if paradigm == "USER" else None) or USER_CODE
    return kind if kind in _PHASES and op is None else "user", None, None


def _translate_mpi_call(name: str, role: str) -> Meaning:
    """Return the meaning of a call of MPI: waiting, if it is unknown, as that is no rank's own work."""
    call_name, step = normalize_word(name), None
    if call_name in _CALLS_OF_MPI:
        return (*_CALLS_OF_MPI[call_name], step)
    kind, op = find_meaning(name) or USER_CODE
    is_blocking = role in _ROLES_OF_COLLECTIVES and not call_name.startswith("mpii")
    return (kind, op, step) if is_blocking and kind == "reduction" else ("wait", None, step)
