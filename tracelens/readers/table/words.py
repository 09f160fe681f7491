"""The words that tables use for kinds, operations and roles, and what TraceLens calls them.

Case and separators do not count, nor do a library's name in front or a number behind: ``AllReduce``,
``all_reduce``, ``MPI_Allreduce`` and ``nccl:all_reduce`` are one word, ``forward.3`` is ``forward``.
"""

from __future__ import annotations

import re
from typing import Final

from tracelens.schema.vocabulary import KINDS, OPS, ROLES

__all__ = ["Meaning", "meaning", "normal", "role"]

Meaning = tuple[str, str | None]  # kind, and operation where the word says one

_KINDS: Final[dict[str, str]] = {
    "step": "train_step training_step iteration iter profiler_step",
    "data": "dataloader data_loader data_loading data_load load loading loader input next_batch "
    "fetch_batch get_batch dataload",
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
    "device": "gpu kernel",
    "user": "compute computation function other own",
}
_OPS: Final[dict[str, str]] = {
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
    "master_update": "center_update elastic_master_update",
}
_ROLES: Final[dict[str, str]] = {
    "worker": "trainer client chief rank training",
    "ps": "server parameter_server param_server pserver shard",
}
_LIBRARY = re.compile(r"^(?:nccl|rccl|mpi|gloo|c10d|hvd|horovod|ucc|oneccl|dist|ps|cuda|torch)+")
_SEPARATOR = re.compile(r"[\W_]+")
_NUMBER = re.compile(r"\d+$")


def normal(word: str) -> str:
    """Leave out what does not count: ``All_Reduce`` is ``allreduce``."""
    return _SEPARATOR.sub("", word).casefold()


def _index(words: dict[str, str]) -> dict[str, str]:
    known = {normal(ours): ours for ours in words}
    return known | {normal(word): ours for ours, said in words.items() for word in said.split()}


_KIND_OF_OP: Final = {op: kind for kind, ops in OPS.items() for op in ops}
_MEANINGS: Final[dict[str, Meaning]] = {
    **{word: (_KIND_OF_OP[op], op) for word, op in _index(_OPS).items()},
    **{word: (kind, None) for word, kind in _index(_KINDS).items()},
}
_ROLE_OF: Final = _index(_ROLES)
assert set(_KINDS) == set(KINDS)
assert set(_OPS) == set(_KIND_OF_OP)
assert set(_ROLES) == set(ROLES)


def meaning(word: str) -> Meaning | None:
    """Say what a word for a kind or an operation means; None if nobody knows it."""
    whole = normal(word)
    bare = _NUMBER.sub("", whole)
    for key in (whole, bare, _LIBRARY.sub("", bare)):
        if key in _MEANINGS:
            return _MEANINGS[key]
    return None


def role(word: str) -> str | None:
    """Say which role a word means; None if nobody knows it."""
    return _ROLE_OF.get(_NUMBER.sub("", normal(word)))
