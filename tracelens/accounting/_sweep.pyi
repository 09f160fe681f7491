# What `sweep.py` uses of the part in C.

from tracelens.arrays import Array

REVISION: int

def cut(given: tuple[Array, ...], room: tuple[Array, ...]) -> int: ...
