from typing import Final

import pytest
from support.launch.forked import fork_server, run_ranks
from support.launch.recorder_fixtures import recorder_off, trace
from support.turns import select_turn

__all__ = ["fork_server", "recorder_off", "run_ranks", "trace"]

# The files whose turn it is: they also start their ranks by torchrun, under `tracelens record`.
LAUNCHED: Final = select_turn(
    ("test_torch_ranks", "test_torch_trainings", "test_torch_collectives", "test_torch_messages")
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Start ranks by forks of a process that has imported PyTorch; in some files also by torchrun."""
    if "run_ranks" not in metafunc.fixturenames:
        return
    starts = [pytest.param("forked")]
    if metafunc.definition.path.stem in LAUNCHED:
        starts.append(pytest.param("launched", marks=pytest.mark.slow))
    metafunc.parametrize("run_ranks", starts, indirect=True, scope="session")
