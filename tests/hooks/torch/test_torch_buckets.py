"""Buckets are recorded with any communication hook, and an unsuitable hook does no harm."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from support.imports import LateModule
from support.launch.patience import wait_until
from support.launch.recording import read_one
from support.launch.torch_training import Training, dist, group_of_one, network, torch

import tracelens as tl
from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.hooks.torch import buckets, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

parallel: Any = LateModule("torch.nn.parallel")
weak: Any = LateModule("torch.utils.weak")


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    with group_of_one():
        yield


class Hook:
    """A communication hook of a user's: counts, reduces nothing."""

    def __init__(self) -> None:
        self.__name__ = self.__qualname__ = "hook"  # as a function has
        self.calls = 0

    # DDP refuses annotations that are strings, as all are here.
    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        assert state == "state"
        self.calls += 1
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


def _trained(model: Any) -> Training:
    training = Training(model)
    training.step()
    training.step()
    return training


def test_without_a_hook_of_the_users(trace: Path) -> None:
    _trained(tl.attach(parallel.DistributedDataParallel(network())))
    tl.stop()
    buckets = read_one(trace).named("bucket")
    assert [(b["bytes"], b["op"]) for b in buckets] == [(4 * (8 * 16 + 16 + 16), "allreduce")] * 2
    assert buckets[0]["seq"] < buckets[1]["seq"]  # between them DDP tells in which order it reduces


def test_the_buckets_of_each_pass_are_numbered(trace: Path) -> None:
    """From 0 on, by what is compiled and by what is not; DDP arranges them anew after the first step."""
    training = Training(tl.attach(parallel.DistributedDataParallel(network(), bucket_cap_mb=1e-4)))
    for number in range(5):
        with tl.step(number):
            training.step()
    tl.stop()
    found = read_one(trace).named("bucket")
    by_step = [[one["bucket"] for one in found if one["step"] == step] for step in range(5)]
    assert by_step == [[0], *[[0, 1]] * 4]


def test_each_backward_pass_has_a_bucket(trace: Path) -> None:
    """Numbered on, although what is compiled sees some of them, and Python others."""
    training = Training(tl.attach(parallel.DistributedDataParallel(network())))
    for _ in range(5):
        training.step()
    tl.stop()
    found = read_one(trace).named("bucket")
    assert [(one["bucket"], one["status"]) for one in found] == [(0, "closed")] * 5
    assert [two["seq"] - one["seq"] for one, two in pairwise(found[2:])] == [1, 1]


@pytest.mark.skipif(not compiled.load_library(), reason="not compiled for this PyTorch")
def test_a_buffer_in_other_hands_is_no_bucket(trace: Path) -> None:
    """What a program itself reduces is recorded as that, also a buffer of DDP's."""
    training = _trained(tl.attach(parallel.DistributedDataParallel(network())))
    training.step()
    buffer = list(buckets._BUFFERS.values())[-1].buffer()
    assert buffer is not None
    dist.all_reduce(buffer)
    tl.stop()
    recorded = read_one(trace)
    assert len(recorded.named("bucket")) == 3
    assert recorded.one("all_reduce")["bytes"] == buffer.nbytes


@pytest.mark.skipif(not NATIVE, reason="the recorder in Python leaves it as it is")
@pytest.mark.usefixtures("trace")
def test_threads_of_gloo_keep_their_python_state() -> None:
    """Else each completion makes one, with memory that the kernel maps and takes back."""
    thread_state = threading.local()
    thread_idents = []

    def completed(_future: Any) -> None:
        if not hasattr(thread_state, "state"):
            thread_state.state = True
            thread_idents.append(threading.get_ident())

    tl.attach(parallel.DistributedDataParallel(network()))
    dist.all_reduce(torch.ones(4))  # the first event opens the recording, in Python
    for _ in range(20):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.get_future().add_done_callback(completed)
        work.wait()
    assert len(thread_idents) == len(set(thread_idents))


def test_the_users_hook_is_called_and_recorded(trace: Path) -> None:
    model = tl.attach(parallel.DistributedDataParallel(network()))
    hook = Hook()
    model.register_comm_hook("state", hook)
    _trained(model)
    tl.stop()
    assert hook.calls == len(read_one(trace).named("bucket")) == 2


def test_a_second_hook_is_refused_as_ever() -> None:
    model = tl.attach(parallel.DistributedDataParallel(network()))
    model.register_comm_hook("state", Hook())
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook("state", Hook())


def test_what_is_no_hook_is_refused_as_ever() -> None:
    model = tl.attach(parallel.DistributedDataParallel(network()))
    with pytest.raises(TypeError, match="must be callable"):
        model.register_comm_hook("state", "no hook")


def test_a_hook_from_before_is_kept_and_told_of(trace: Path) -> None:
    model = parallel.DistributedDataParallel(network())
    hook = Hook()
    register = parallel.DistributedDataParallel.register_comm_hook
    getattr(register, "__wrapped__", register)(
        model, "state", hook
    )  # as if attach were never called
    with pytest.warns(
        RuntimeWarning, match="buckets of a model are not recorded.*call attach first"
    ):
        tl.attach(model)
    _trained(model)
    tl.stop()
    assert hook.calls == 2
    recorded = read_one(trace)
    assert not recorded.named("bucket")
    assert len(recorded.named("backprop")) == 2


def test_a_built_in_hook_is_kept_and_seen(trace: Path) -> None:
    model = parallel.DistributedDataParallel(network())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    training = Training(tl.attach(model))
    training.step()
    tl.stop()
    recorded = read_one(trace)
    assert recorded.one("bucket")["bytes"] == 2 * (8 * 16 + 16 + 16)
    assert len(recorded.named("backprop")) == 1


def test_two_models_share_a_backward_pass(trace: Path) -> None:
    """Computing goes on after the first model's bucket; waiting begins after the last one."""
    first, second = (tl.attach(parallel.DistributedDataParallel(network())) for _ in range(2))
    inputs = torch.ones(2, 8)
    (first(inputs) + second(inputs)).sum().backward()
    tl.stop()
    recorded = read_one(trace)
    buckets = recorded.named("bucket")
    assert [bucket["bucket"] for bucket in buckets] == [0, 1]
    assert buckets[1]["seq"] == buckets[0]["seq"] + 1
    whole = [*recorded.named("backprop"), *recorded.named("wait for reductions")]
    assert [span["kind"] for span in whole] == ["backprop", "wait"]
    for before, after in pairwise(whole):
        assert before["start_ns"] + before["duration_ns"] <= after["start_ns"]


def test_a_model_inside_the_attached_one_is_found(trace: Path) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = parallel.DistributedDataParallel(network())

        def forward(self, inputs: Any) -> Any:
            return self.inner(inputs)

    _trained(tl.attach(Outer()))
    tl.stop()
    assert len(read_one(trace).named("bucket")) == 2


def test_a_recorded_model_goes_away() -> None:
    """Nothing of ours keeps a model alive: gloo's threads must not outlive it."""
    model = tl.attach(parallel.DistributedDataParallel(network()))
    _trained(model)
    weight = weak.TensorWeakRef(model.module[0].weight)
    del model
    wait_until(lambda: weight() is None)  # one of gloo's threads may just be letting go of a bucket
