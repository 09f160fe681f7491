"""PyTorch's own distributed tests, as far as its wheel holds them: on gloo, on this machine.

The wheel has them as classes that wait to be given a backend and processes, which files of PyTorch's
repository do (such as `test/distributed/test_distributed_fork.py`), and this one. FSDP's tests are in
that repository only; the wheel has their comparison of FSDP to DDP, which is made here with options.

Usage: torch_tests.py OUTCOMES NAME..., a file for the outcomes and tests as Class.name; or
torch_tests.py --list [CLASS...].
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import tempfile
import unittest
from functools import partialmethod
from pathlib import Path
from typing import Any

os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

import torch
import torch.distributed as dist
from suites.unittest_outcomes import result_class
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, ShardingStrategy
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_fsdp import (
    DEVICEInitMode,
    FSDPInitMode,
    FSDPTestMixin,
    NestedWrappedModule,
    TransformerWithSharedParams,
)
from torch.testing._internal.common_utils import FILE_SCHEMA
from torch.testing._internal.distributed import ddp_under_dist_autograd_test as under_rpc
from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.rpc.dist_optimizer_test import DistOptimizerTest
from torch.testing._internal.distributed.rpc.examples.parameter_server_test import (
    ParameterServerTest,
)
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)


class Forked:
    """Starts the processes of each test by fork: they need not import PyTorch again."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        start = torch.multiprocessing.get_context("fork").Process
        self._start_processes(start)  # type: ignore[attr-defined]


class Spawned:
    """Starts the processes of each test by spawn: they import all anew."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]
        self._spawn_processes()  # type: ignore[attr-defined]


_Tests = distributed_test.DistributedTest._DistTestBase
_Rpc = TensorPipeRpcAgentTestFixture


class Distributed(Forked, distributed_test.TestDistBackend, _Tests):
    """c10d and DistributedDataParallel."""


class DistributedSpawned(Spawned, distributed_test.TestDistBackend, _Tests):
    """The same in processes that are spawned."""


class DdpUnderRpc(Forked, under_rpc.DdpUnderDistAutogradTest, _Rpc, MultiProcessTestCase):
    """DDP inside and outside of remote procedure calls."""


class DdpComparison(Forked, under_rpc.DdpComparisonTest, _Rpc, MultiProcessTestCase):
    """DDP with and without distributed autograd."""


class DistributedOptimizer(Forked, DistOptimizerTest, _Rpc, MultiProcessTestCase):
    """Optimizers of parameters elsewhere."""


class ParameterServer(Forked, ParameterServerTest, _Rpc, MultiProcessTestCase):
    """A parameter server by remote procedure calls."""


class Fsdp(Forked, FSDPTestMixin, MultiProcessTestCase):
    """FSDP trains as DDP does, with all its options."""

    process_group = property(lambda _self: dist.distributed_c10d._get_default_group())
    destroy_pg_upon_exit = property(lambda _self: False)
    world_size = property(lambda _self: int(os.environ["WORLD_SIZE"]))

    @classmethod
    def _run(  # type: ignore[override]  # its bases differ, too
        cls, rank: int, test_name: str, file_name: str, pipe: Any, **_kwargs: Any
    ) -> None:
        self = cls(test_name)
        self.rank, self.file_name = rank, file_name
        dist.init_process_group(
            "gloo",
            init_method=f"{FILE_SCHEMA}{file_name}",
            world_size=self.world_size,
            rank=rank,
            timeout=dt.timedelta(seconds=60),
        )
        dist.barrier()
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()

    def _parity(self, model: Any, options: dict[str, Any]) -> None:
        self._test_fsdp_parity(
            model,
            FSDPInitMode.RECURSIVE,
            DEVICEInitMode.DEVICE_BEFORE,
            device_id=torch.device("cpu"),
            **options,
        )


_MODELS = {"nested": NestedWrappedModule, "transformer": TransformerWithSharedParams}
_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"sharding_strategy": ShardingStrategy.FULL_SHARD},
    "grad_op": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "none": {"sharding_strategy": ShardingStrategy.NO_SHARD},
    "prefetched": {
        "backward_prefetch": BackwardPrefetch.BACKWARD_PRE,
        "forward_prefetch": True,
    },
    "original_parameters": {"use_orig_params": True},
    "offloaded": {"cpu_offload": CPUOffload(offload_params=True)},
}
for _model, _class in _MODELS.items():
    for _name, _given in _OPTIONS.items():
        setattr(Fsdp, f"test_{_model}_{_name}", partialmethod(Fsdp._parity, _class, _given))


_ALL = (Distributed, DdpUnderRpc, DdpComparison, DistributedOptimizer, ParameterServer, Fsdp)


def _names(classes: list[str]) -> list[str]:
    """Return the names of the tests of some classes, or of all that are not spawned."""
    found = [globals()[name] for name in classes] or _ALL
    loader = unittest.defaultTestLoader
    return [f"{one.__name__}.{test}" for one in found for test in loader.getTestCaseNames(one)]


if __name__ == "__main__":
    outcomes, *names = sys.argv[1:]
    if outcomes == "--list":
        sys.stdout.write("\n".join(_names(names)))
    else:
        suite = unittest.defaultTestLoader.loadTestsFromNames(names, sys.modules["__main__"])
        result = result_class(Path(outcomes))
        unittest.TextTestRunner(resultclass=result).run(suite)
