# What the recorder's parts in Python use of the part in C.

from collections.abc import Callable, Iterator
from mmap import mmap
from threading import local
from typing import Any

from tracelens_instrument.recording import Recording
from tracelens_instrument.segments import Segment, Slot
from tracelens_instrument.span_in_python import Span as Span
from tracelens_instrument.state import State, Waiting
from tracelens_instrument.token_in_python import Token as Token

REVISION: int

class Slots(Iterator[Slot]):
    def __init__(self, memory: mmap | bytearray) -> None: ...
    def __next__(self) -> Slot: ...
    def __length_hint__(self) -> int: ...

class Here:
    def __init__(self, index: int) -> None: ...
    @property
    def index(self) -> int: ...
    @property
    def block(self) -> bytes: ...

class Fields:
    segment: Segment | None
    waiting: Waiting | None
    recording: Recording | None
    local: local
    step: int
    blank: bytes
    blank_beside_bytes: bytes

def install(
    state: State,
    twin: Callable[[int], Span],
    again: Callable[[int], tuple[Any, ...]],
) -> None: ...
def redirect(slots: Iterator[Slot], memory: bytearray) -> None: ...
def now() -> int: ...
def use_counter(usable: bool) -> None: ...
