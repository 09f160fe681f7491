"""Which of our kinds, operations and roles a word of another tool means.

In words case and separators do not count, nor do a library's name in front or a number behind:
``AllReduce``, ``all_reduce``, ``MPI_Allreduce`` and ``nccl:all_reduce`` are one word, ``forward.3`` is
``forward``.
"""

from __future__ import annotations

import re
from typing import Final

from tracelens.schema.vocabulary import KINDS, OPS, ROLES

__all__ = ["Meaning", "kernel_meaning", "meaning", "normal", "rank_in_name", "role", "step_number"]


_KIND_SYNONYMS: Final[dict[str, str]] = {
    "step": "train_step training_step iteration iter profiler_step",
    "data": "dataloader data_loader data_loading data_load load loading loader input next_batch "
    "fetch_batch get_batch load_batch load_data dataload",
    "forward": "fwd fprop forward_pass fw",
    "backprop": "backward bwd bprop backward_pass back_prop backpropagation bw gradient gradients",
    "reduction": "communication comm communicate collective collectives network nccl",
    "update": "optimizer optimizer_step optim opt_step weight_update weights_update update_weights "
    "apply_update sgd_step adam_step parameter_update",
    "wait": "waiting idle sync synchronize synchronise stall blocked",
    "ps": "parameter_server param_server",
    "elastic": "easgd elastic_averaging elastic_update elastic_exchange",
    "checkpoint": "ckpt checkpointing save_checkpoint checkpoint_save",
    "gc": "garbage_collection garbage_collector",
    "device": "gpu kernel gpu_kernel concurrent_kernel hip_kernel memcpy memset gpu_memcpy gpu_memset",
    "user": "compute computation function other own",
}
_OP_SYNONYMS: Final[dict[str, str]] = {
    "allreduce": "reduce_all ring_allreduce tree_allreduce iallreduce",
    "reduce_scatter": "reduce_scatter_tensor ireduce_scatter reduce_scatter_base",
    "all_gather": "all_gather_into_tensor iallgather allgatherv all_gather_base",
    "broadcast": "bcast ibcast",
    "reduce": "ireduce",
    "gather": "igather gatherv",
    "scatter": "iscatter scatterv",
    "all_to_all": "alltoallv ialltoall all_to_all_single all2all",
    "barrier": "ibarrier",
    "send": "isend",
    "recv": "irecv",
    "push": "ps_push push_gradients push_grads push_gradient send_gradients",
    "pull": "ps_pull pull_weights pull_parameters pull_params fetch_weights get_weights",
    "receive": "ps_receive",
    "aggregate": "ps_aggregate aggregate_gradients",
    "apply": "ps_apply ps_service ps_update serve service apply_gradients server_update",
    "reply": "ps_reply respond",
    "turn_wait": "wait_turn",
    "weights_down": "download_weights",
    "weights_up": "upload_weights",
    "worker_update": "elastic_worker_update local_elastic_update",
    "launch": "kernel_launch wait_for_work",
    "request_wait": "wait_for_requests",
    "master_update": "center_update elastic_master_update",
}
_ROLE_SYNONYMS: Final[dict[str, str]] = {
    "worker": "trainer client chief rank training",
    "ps": "server parameter_server param_server pserver shard",
}
_LIBRARY = re.compile(r"^(?:nccl|rccl|mpi|gloo|c10d|hvd|horovod|ucc|oneccl|dist|ps|cuda|torch)+")
# What NCCL and RCCL call their kernels: ncclDevKernel_AllReduce_Sum_f32_RING_LL(...), normalized.
_COLLECTIVE_KERNEL = re.compile(
    r"^[nr]ccl(?:dev)?kernel(?:debug)?"
    r"(allreduce|reducescatter|allgather|broadcast|reduce|sendrecv)"
)
_STEP: Final = re.compile(r"(?i)^(?:\w+[ ._#-])?(?:step|iter|iteration|batch)[ ._#:-]*(\d{1,9})$")
# A process's rank in its name, and words in front of "rank" that make it one of something smaller.
_RANK: Final = re.compile(
    r"(?i)(?:^worker|(?:\b|_)(?:(?P<of>[a-z]+)[ _-])?rank)[ #:=_-]*(?P<rank>\d{1,6})(?!\w)"
)
_RANKS_OF_PARTS: Final = frozenset(("local", "node", "group", "tp", "dp", "pp", "ep", "cp"))
_SEPARATOR = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+$")
_KIND_OF_OP: Final = {op: kind for kind, ops in OPS.items() for op in ops}
Meaning = tuple[str, str | None]  # kind, and operation where the word says one


def normal(word: str) -> str:
    """Normalize a word: ``All_Reduce`` is ``allreduce``."""
    return _SEPARATOR.sub("", word).casefold()


def _index(words: dict[str, str]) -> dict[str, str]:
    known = {normal(ours): ours for ours in words}
    return known | {normal(word): ours for ours, texts in words.items() for word in texts.split()}


_MEANINGS: Final[dict[str, Meaning]] = {
    **{word: (_KIND_OF_OP[op], op) for word, op in _index(_OP_SYNONYMS).items()},
    **{word: (kind, None) for word, kind in _index(_KIND_SYNONYMS).items()},
}
_ROLE_OF: Final = _index(_ROLE_SYNONYMS)
assert set(_KIND_SYNONYMS) == set(KINDS)
assert set(_OP_SYNONYMS) == set(_KIND_OF_OP)
assert set(_ROLE_SYNONYMS) == set(ROLES)


def kernel_meaning(name: str) -> Meaning | None:
    """Return the meaning of the name of a kernel that communicates; None of any other name.

    A kernel that sends and receives may be part of several operations, so it has none.
    """
    found = _COLLECTIVE_KERNEL.match(normal(name))
    return _MEANINGS.get(found[1], ("reduction", None)) if found else None


def step_number(word: str) -> int | None:
    """Return which step a range called so is, as ``train step 12``; None where it names none."""
    found = _STEP.match(word)
    return int(found[1]) if found else None


def rank_in_name(name: str) -> int | None:
    """Return which rank a process called so is, as ``rank 3`` or ``worker 3``; None if it says none."""
    found = _RANK.search(name)
    if not found or (found["of"] or "").casefold() in _RANKS_OF_PARTS:
        return None
    return int(found["rank"])


def meaning(word: str) -> Meaning | None:
    """Return the meaning of a word for a kind or an operation; None if it is unknown."""
    whole = normal(word)
    kernel = kernel_meaning(word)
    if kernel:
        return kernel
    bare = _NUMBER.sub("", whole)
    for key in (whole, bare, _LIBRARY.sub("", bare)):
        if key in _MEANINGS:
            return _MEANINGS[key]
    return None


def role(word: str) -> str | None:
    """Return which role a word means; None if it is unknown."""
    return _ROLE_OF.get(_NUMBER.sub("", normal(word)))
