# What the recorder's parts in Python use of the part in C.

from collections.abc import Callable, Iterator
from mmap import mmap
from threading import local
from typing import Any

REVISION: int

class Slots(Iterator[tuple[int, int]]):
    def __init__(self, memory: mmap | bytearray) -> None: ...
    def __next__(self) -> tuple[int, int]: ...
    def __length_hint__(self) -> int: ...

class ThreadState:
    def __init__(self, index: int) -> None: ...
    @property
    def index(self) -> int: ...
    @property
    def block(self) -> bytes: ...

class Fields:  # as `core.state.State` describes them
    segment: Any
    waiting: Any
    recording: Any
    local: local
    step: int
    infers_steps: bool
    blank: bytes
    blank_beside_bytes: bytes
    left: int
    def arm(self, duration_ns: int, max_step_slots: int, min_slots_left: int) -> bool: ...
    def disarm(self) -> None: ...
    def pass_boundary(self) -> bool: ...

Span: Any  # as `core.spans.PythonSpan`
Token: Any  # as `core.spans.PythonToken`
Step: Any  # as `core.steps.PythonStep`

def span_of(definition: int) -> Any: ...
def install(
    state: Fields, fallback: Callable[[int], Any], reduce: Callable[[int], tuple[Any, ...]]
) -> None: ...
def redirect(slots: Iterator[tuple[int, int]], memory: bytearray) -> None: ...
def now() -> int: ...
def use_counter(usable: bool) -> None: ...
def install_steps(
    step: Any,
    samples: Any,
    tokens: Any,
    put_counter: Callable[[Any, Any], None],
    fallback: Callable[[int, float | None, float | None], Any],
) -> None: ...
def step(number: int, samples: float | None = None, tokens: float | None = None) -> Any: ...
