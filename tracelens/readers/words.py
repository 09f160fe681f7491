"""The vocabulary of other tools: which of our kinds, operations and roles a word of theirs means.

In words case and separators do not count, nor do a library's name in front or a number behind:
``AllReduce``, ``all_reduce``, ``MPI_Allreduce`` and ``nccl:all_reduce`` are one word, ``forward.3`` is
``forward``.
"""

from __future__ import annotations

import re
from typing import Final

from tracelens.schema.vocabulary import COLLECTIVES, KINDS, OPS, ROLES

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
_LIBRARY: Final = re.compile(
    r"^(?:nccl|rccl|mpi|gloo|c10d|hvd|horovod|ucc|oneccl|dist|ps|cuda|torch)+"
)
# What PyTorch puts behind the name of a collective: allreduce_coalesced_, _allgather_base.
_VARIANT: Final = re.compile(r"(?:base|oop|coalesced|sparse|intotensor|tensor|single|v)+$")
# What NCCL and RCCL call their kernels: ncclDevKernel_AllReduce_Sum_f32_RING_LL(...), normalized.
_COLLECTIVE_KERNEL: Final = re.compile(
    r"^[nr]ccl(?:dev)?kernel(?:debug)?"
    r"(allreduce|reducescatter|allgather|broadcast|reduce|sendrecv)"
)
_STEP: Final = re.compile(r"(?i)^(?:\w+[ ._#-])?(?:step|iter|iteration|batch)[ ._#:-]*(\d{1,9})$")
# A process's rank in its name, and words in front of "rank" that make it one of something smaller.
_RANK: Final = re.compile(
    r"(?i)(?:^worker|(?:\b|_)(?:(?P<of>[a-z]+)[ _-])?rank)[ #:=_-]*(?P<rank>\d{1,6})(?!\w)"
)
_SMALLER_GROUPS: Final = frozenset(("local", "node", "group", "tp", "dp", "pp", "ep", "cp"))
_SEPARATOR: Final = re.compile(r"[\W_]+")
_NUMBER: Final = re.compile(r"\d+$")
_KIND_OF_OP: Final = {op: kind for kind, ops in OPS.items() for op in ops}
Meaning = tuple[str, str | None]  # kind, and operation where the word says one
USER_CODE: Final[Meaning] = ("user", None)
# Kinds that a span's name alone does not prove: other code has functions called so.
KINDS_NOT_OF_NAMES: Final = frozenset({"ps", "elastic", "device"})


def normalize_word(word: str) -> str:
    """Normalize a word: ``All_Reduce`` is ``allreduce``."""
    return _SEPARATOR.sub("", word).casefold()


def _index(synonyms: dict[str, str]) -> dict[str, str]:
    """Return our word by each normalized synonym; `synonyms` are words with blanks between, by ours."""
    pairs = [(word, ours) for ours, words in synonyms.items() for word in (ours, *words.split())]
    return {normalize_word(word): ours for word, ours in pairs}


_MEANINGS: Final[dict[str, Meaning]] = {
    **{word: (_KIND_OF_OP[op], op) for word, op in _index(_OP_SYNONYMS).items()},
    **{word: (kind, None) for word, kind in _index(_KIND_SYNONYMS).items()},
}
_ROLE_OF: Final = _index(_ROLE_SYNONYMS)
assert set(_KIND_SYNONYMS) == set(KINDS)
assert set(_OP_SYNONYMS) == set(_KIND_OF_OP)
assert set(_ROLE_SYNONYMS) == set(ROLES)


def find_kernel_meaning(name: str) -> Meaning | None:
    """Return the meaning of the name of a kernel that communicates; None of any other name.

    A kernel that sends and receives may be part of several operations, so it has none.
    """
    match = _COLLECTIVE_KERNEL.match(normalize_word(name))
    return _MEANINGS.get(match[1], ("reduction", None)) if match else None


def parse_step_number(name: str) -> int | None:
    """Return the step number in the name of a range: ``train step 12``; None without one."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


def rank_in_name(name: str) -> int | None:
    """Return the rank in the name of a process: ``rank 3``, ``worker 3``; None without one."""
    match = _RANK.search(name)
    if not match or (match["of"] or "").casefold() in _SMALLER_GROUPS:
        return None
    return int(match["rank"])


def find_meaning(word: str) -> Meaning | None:
    """Return the kind that a word means, and its operation where it says one; None if it is unknown.

    It may have a library's name in front, a number behind, and a collective the variant of PyTorch.
    """
    if kind_and_op := find_kernel_meaning(word):
        return kind_and_op
    normalized = normalize_word(word)
    without_number = _NUMBER.sub("", normalized)
    without_library = _LIBRARY.sub("", without_number)
    for candidate in (normalized, without_number, without_library):
        if candidate in _MEANINGS:
            return _MEANINGS[candidate]
    kind_and_op = _MEANINGS.get(_VARIANT.sub("", without_library))
    return kind_and_op if kind_and_op and kind_and_op[1] in COLLECTIVES else None


def find_meaning_of_names(
    *names: str, excluded_kinds: frozenset[str] = KINDS_NOT_OF_NAMES
) -> Meaning:
    """Return kind and operation of the first name that has any; else, or if excluded, user code."""
    kind, op = next(filter(None, map(find_meaning, names)), USER_CODE)
    return (kind, op) if kind not in excluded_kinds else USER_CODE


def find_role(word: str) -> str | None:
    """Return the role that a word means; None if it is unknown."""
    return _ROLE_OF.get(_NUMBER.sub("", normalize_word(word)))
