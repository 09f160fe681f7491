"""What a function of Python is in our words, by its name and the file that defines it.

Of PyTorch's and Horovod's files it is known what their functions do. A function of the user's is
believed where its name says a phase and hardly anything else: ``backward``, but not ``update``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tracelens.readers.words import meaning, normal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens.readers.words import Meaning

__all__ = ["OF_THE_USER", "function_meaning"]

OF_THE_USER: Final[Meaning] = ("user", None)


def _always(kind: str, *names: str) -> Callable[[str], Meaning | None]:
    return lambda name: (kind, None) if name in names else None


def _communication(name: str) -> Meaning | None:
    found = meaning(name)
    return found if found and found[1] else None


# A file's end, and what its functions are.
_LIBRARIES: Final = (
    (r"torch/(_tensor|autograd/(__init__|graph))\.py", _always("backprop", "backward")),
    (r"torch/optim/(?!lr_scheduler|swa_utils)\w+\.py", _always("update", "step")),
    (r"torch/utils/data/dataloader\.py", _always("data", "__next__", "_next_data")),
    (r"torch/nn/(parallel/distributed|modules/\w+)\.py", _always("forward", "forward")),
    (r"torch/distributed/fsdp/\w+\.py", _always("forward", "forward")),
    (r"torch/(serialization|distributed/checkpoint/\w+)\.py", _always("checkpoint", "save")),
    (r"torch/distributed/distributed_c10d\.py", _communication),
    (r"horovod/\w+/mpi_ops\.py", _communication),
)
_KNOWN: Final = [(re.compile(rf"(?:^|/){ends}$"), of) for ends, of in _LIBRARIES]
_OF_A_LIBRARY: Final = re.compile(
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
def function_meaning(qualified: str, file: str) -> Meaning:
    """Return the kind of a function, and its operation where it communicates.

    `qualified` may have its class in front (``Model.forward``); `file` is empty of what is written in C.
    """
    owner, _, name = qualified.rpartition(".")
    path = file.replace("\\", "/")
    for ends, of in _KNOWN:
        if ends.search(path):
            return of(name) or OF_THE_USER
    if not path or _OF_A_LIBRARY.search(path):
        return OF_THE_USER
    if name == "step" and _OPTIMIZER.search(owner):
        return ("update", None)
    if name in {"__next__", "__getitem__"} and _LOADER.search(owner):
        return ("data", None)
    found = meaning(name)
    if found is None or found[0] not in _PHASES or normal(name) in _AMBIGUOUS:
        return OF_THE_USER
    return found
