"""What torch.profiler calls things, of today and of years ago, in our words.

Sources: `libkineto` (ActivityType.cpp, output_json.cpp), PyTorch (`ParamCommsUtils.hpp`,
`profiler_kineto.cpp`, `torch.optim.Optimizer`, `torch.utils.data.DataLoader`), and the names of NCCL's
and RCCL's kernels.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from tracelens.readers.words import USER_CODE, find_meaning

_CATEGORIES: Final[dict[str, str]] = {
    **dict.fromkeys(("cpu_op", "operator"), "operator"),
    "user_annotation": "annotation",
    **dict.fromkeys(("kernel", "concurrent_kernel", "mtia_ccp_events"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "memcpy", "gpu_memset", "memset"), "copy"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"), "runtime"),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), "runtime"),
    **dict.fromkeys(("mtia_runtime", "glow_runtime", "runtime"), "runtime"),
    "python_function": "python",
    "gpu_user_annotation": "shadow",
    "trace": "profiler",
    **dict.fromkeys(("overhead", "cuda_profiler_range"), "overhead"),
    **dict.fromkeys(("cuda_sync", "cuda_event"), "synchronization"),
    "cpu_instant_event": "mark",
}
# Read, counted, and in no row.
IN_NO_ROW: Final[dict[str, str]] = {
    "python": "Python functions (with_stack)",
    "shadow": "annotations repeated on streams",
    "profiler": "spans of the profiler itself",
    "overhead": "overhead of the profiler",
    "synchronization": "synchronization records of streams",
    "mark": "marks and memory records",
}
_EVENTS: Final[dict[str, str]] = {
    **dict.fromkeys("stf", "arrows between events"),
    **dict.fromkeys("iIRn", "marks and memory records"),
    **dict.fromkeys("be", "asynchronous events"),
    **dict.fromkeys("STpF", "asynchronous events"),
    **dict.fromkeys("C", "counters"),
    **dict.fromkeys("NOD", "objects"),
    **dict.fromkeys("vV", "memory dumps"),
    **dict.fromkeys("P", "samples"),
    **dict.fromkeys("c(),", "contexts and clock marks"),
}
LIBRARIES: Final = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:", "c10d::", "rccl:")
# Ranges of the profiler, which old versions write as operators.
RANGES: Final = r"^(ProfilerStep\s*#|Optimizer\.step#|enumerate\(DataLoader\)#)"
_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*(\d{1,9})$")
_ANNOTATIONS: Final = (
    (re.compile(r"^Optimizer\.step(#|$)|^optimizer_step$"), "update"),
    (re.compile(r"^enumerate\(DataLoader\)#|DataLoader.*\.__next__$|train_dataloader_next$"), "data"),
    (re.compile(r"^((Distributed|FullySharded)?DataParallel)\.forward"), "forward"),
    (re.compile(r"^FSDP::root_pre_forward|^FSDP::pre_forward|^FSDP::post_forward"), "forward"),
    (re.compile(r"^(FSDP::|FullyShardedDataParallel\._)(pre|post)_backward"), "backprop"),
    (re.compile(r"^torch\.distributed\.ddp\.reducer::"), "backprop"),
)  # fmt: skip
_PHASES: Final = ("forward", "backprop", "update", "data", "checkpoint", "gc", "step")
_DECORATION: Final = re.compile(r"^[\W_]+|[\W_]+$")
_ELEMENT_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("double", "float64", "long", "int64", "uint64", "complexfloat"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32", "complexhalf", "uint32", "unsignedint"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "unsignedchar", "signedchar"), 1),
    **dict.fromkeys(("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz"), 1),
    "complexdouble": 16,
}  # fmt: skip
SYNCHRONIZES: Final = r"^(cuda|cu|hip)(Ctx|Device|Stream|Event)?Synchronize"


@lru_cache(maxsize=1 << 12)
def translate_category(word: str) -> str:
    """Translate a category of the profiler; an unknown one is ``other``."""
    return _CATEGORIES.get(word.casefold(), "other")


def describe_event_phase(phase: Any) -> str:
    """Describe an event that becomes no row, by its phase (`ph`)."""
    known = _EVENTS.get(phase) if isinstance(phase, str) else None
    return known or f"events of the unknown type {str(phase)[:20]!r}"


def parse_step_number(name: str) -> int | None:
    """Return the number of a step that the profiler marked."""
    found = _STEP.match(name)
    return int(found[1]) if found else None


def find_phase_of_annotation(name: str) -> str | None:
    """Return the phase of training that an annotation names; null if it names none."""
    for pattern, phase in _ANNOTATIONS:
        if pattern.search(name):
            return phase
    kind, _ = find_meaning(_DECORATION.sub("", name)) or USER_CODE
    return kind if kind in _PHASES else None


def find_collective(name: str) -> str | None:
    """Return the operation of a collective, or message, by any of its names; null for other names."""
    bare_name = name.partition(":")[2] if name.startswith(LIBRARIES) else name
    kind, op = find_meaning(bare_name) or USER_CODE
    return op if kind == "reduction" else None


def find_element_bytes(dtype: object) -> int | None:
    """Return the bytes of one element; None if the type is unknown."""
    word = re.sub(r"[\W_]+", "", dtype).casefold() if isinstance(dtype, str) else ""
    return _ELEMENT_BYTES.get(word) or _ELEMENT_BYTES.get(
        word.removeprefix("c10").removeprefix("at")
    )
