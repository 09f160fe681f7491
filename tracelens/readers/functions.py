"""The meaning of a function of Python in our words, by its name and the file that defines it.

Of PyTorch's and Horovod's files it is known what their functions do. A function of the user's is
believed where its name says a phase and hardly anything else: ``backward``, but not ``update``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tracelens.readers.words import USER_CODE, find_meaning, normalize_word

if TYPE_CHECKING:
    from tracelens.readers.words import Meaning

_COMMUNICATION: Final = "communication"  # functions whose names say an operation
# A file's end, the kind of some of its functions, and their names.
_LIBRARIES: Final = (
    (r"torch/(_tensor|autograd/(__init__|graph))\.py", "backprop", ("backward",)),
    (r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py", "update", ("step",)),
    (r"torch/utils/data/dataloader\.py", "data", ("__next__", "_next_data")),
    (r"torch/nn/(parallel/distributed|modules/\w+)\.py", "forward", ("forward",)),
    (r"torch/distributed/fsdp/\w+\.py", "forward", ("forward",)),
    (r"torch/(serialization|distributed/checkpoint/\w+)\.py", "checkpoint", ("save",)),
    (r"torch/distributed/distributed_c10d\.py|horovod/\w+/mpi_ops\.py", _COMMUNICATION, ()),
)
_KNOWN_FILES: Final = [
    (re.compile(rf"(?:^|/)(?:{end})$"), kind, names) for end, kind, names in _LIBRARIES
]
_LIBRARY_FILE: Final = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python[\d.]+|torch)/|^<"
)
_PHASES: Final = frozenset({"forward", "backprop", "update", "data", "step", "checkpoint"})
# Words of tables that mean much else as names of functions; Lightning's training_step is a part of one.
_AMBIGUOUS: Final = frozenset(
    {
        *("update", "load", "input", "step", "loader", "data", "iter", "iteration", "trainingstep"),
        *("gradient", "gradients", "optimizer"),
    }
)
_OPTIMIZER: Final = re.compile(r"(?i)opt|adam|sgd")
_LOADER: Final = re.compile(r"(?i)loader|dataset")


@lru_cache(maxsize=1 << 16)
def find_function_meaning(qualified_name: str, file: str) -> Meaning:
    """Return the kind of a function, and its operation where it communicates.

    `qualified_name` may have its class in front (``Model.forward``); `file` is empty for functions in C.
    """
    owner, _, name = qualified_name.rpartition(".")
    path = file.replace("\\", "/")
    for file_pattern, kind, names in _KNOWN_FILES:
        if file_pattern.search(path):
            return (kind, None) if name in names else _find_communication(kind, name)
    if not path or _LIBRARY_FILE.search(path):
        return USER_CODE
    if name == "step" and _OPTIMIZER.search(owner):
        return ("update", None)
    if name in {"__next__", "__getitem__"} and _LOADER.search(owner):
        return ("data", None)
    kind, op = find_meaning(name) or USER_CODE
    return (kind, op) if kind in _PHASES and normalize_word(name) not in _AMBIGUOUS else USER_CODE


def _find_communication(kind_of_file: str, name: str) -> Meaning:
    kind, op = (find_meaning(name) if kind_of_file == _COMMUNICATION else None) or USER_CODE
    return (kind, op) if op else USER_CODE
