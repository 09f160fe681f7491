from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.launch.forked import fork_server, run_ranks
from support.launch.recorder_fixtures import recorder_off, trace
from support.turns import select_turn

if TYPE_CHECKING:
    from typing import Final

__all__ = ["fork_server", "recorder_off", "run_ranks", "trace"]

# Each of these files also starts its ranks by torchrun and `tracelens record` when it has its turn.
LAUNCHED: Final = select_turn(
    ("test_torch_ranks", "test_torch_trainings", "test_torch_collectives", "test_torch_messages")
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose how a test starts its ranks: by forks of a process that has imported PyTorch, or really."""
    if "run_ranks" in metafunc.fixturenames:
        launched = metafunc.module.__name__.rpartition(".")[2] in LAUNCHED
        ways = ["forked", *[pytest.param("launched", marks=pytest.mark.slow)] * launched]
        metafunc.parametrize("run_ranks", ways, indirect=True, scope="session")
