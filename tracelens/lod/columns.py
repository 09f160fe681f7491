"""The columns of lanes as files: written part by part, so that memory holds one part, and mapped."""

from __future__ import annotations

import mmap
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.lib import format as npy

from tracelens.lod.lanes import MARK, Lanes, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tracelens.lod.lanes import Integers, Lane

    Tell = Callable[[int, int], None]

TYPES: Final[dict[str, np.dtype[Any]]] = {
    "starts": np.dtype(np.int64),
    "ends": np.dtype(np.int64),
    "codes": np.dtype(np.uint8),
    "steps": np.dtype(np.int32),
    "names": np.dtype(np.int32),
}
OFFSETS: Final = "offsets"
MARKS: Final = "marks"
_PARSING: Final = Lock()


def save(
    parts: Iterable[Lanes], folder: Path, what: str, total: int = 0, tell: Tell | None = None
) -> tuple[Integers, tuple[str, ...]]:
    """Write the columns of all parts; return the offsets of their lanes, and their words."""
    words: dict[tuple[str, ...], int] = {}
    counts = [0]
    marks: list[tuple[Integers, Integers]] = []
    with ExitStack() as stack:
        files = {name: stack.enter_context(_file(folder, what, name).open("wb")) for name in TYPES}
        for name, file in files.items():
            _header(file, name, 0)
        for part in parts:
            base = base_of(words, part.words)
            for name, file in files.items():
                values = part.names + base if name == "names" else getattr(part, name)
                np.ascontiguousarray(values, TYPES[name]).tofile(file)
            marked = slice(-sum(counts) % MARK, None, MARK)
            marks.append((part.starts[marked], part.ends[marked]))
            counts += np.diff(part.offsets).tolist()
            if tell:
                tell(len(counts) - 1, total)
        for name, file in files.items():
            file.seek(0)
            _header(file, name, sum(counts))
    offsets = np.cumsum(counts)
    np.save(_file(folder, what, OFFSETS), offsets)
    none = np.zeros((2, 0), np.int64)
    np.save(_file(folder, what, MARKS), np.concatenate([none, *map(np.array, marks)], axis=1))
    return offsets, tuple(word for group in words for word in group)


def load(folder: Path, what: str, lanes: Sequence[Lane], words: Sequence[str]) -> Lanes:
    """Open what `save` wrote."""
    starts, ends = loaded(_file(folder, what, MARKS))
    found = {name: mapped(_file(folder, what, name)) for name in (OFFSETS, *TYPES)}
    return Lanes(lanes=tuple(lanes), words=tuple(words), marks=(starts, ends), **found)


def mapped(file: Path) -> np.ndarray[Any, Any]:
    """Map an array; as a plain one, which is quicker to slice."""
    return np.asarray(loaded(file, "r"))


def loaded(file: Path, mode: Literal["r"] | None = None) -> np.ndarray[Any, Any]:
    """Read or map an array.

    Its header is a Python expression, and before 3.11.8 Python counts the depth of all threads' syntax
    trees together, so that one that parses beside another can fail (python/cpython#106905).
    """
    with _PARSING:
        array: np.ndarray[Any, Any] = np.load(file, mmap_mode=mode, allow_pickle=False)
    return array


def let_go(lanes: Lanes) -> None:
    """Unmap what was looked at of some lanes; the system still has it, if there is room for it."""
    for name in TYPES:
        owner = getattr(lanes, name)
        while owner is not None and not isinstance(owner, mmap.mmap):
            owner = getattr(owner, "base", None)
        if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)


def _header(file: BinaryIO, name: str, count: int) -> None:
    """Write a header, which is as long for any count."""
    facts = {"descr": npy.dtype_to_descr(TYPES[name]), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(file, facts)


def _file(folder: Path, what: str, name: str) -> Path:
    return folder / f"{what}-{name}.npy"
