from __future__ import annotations

from pathlib import Path

import pytest
from support.launch.recorder_fixtures import recorder_off, trace

__all__ = ["recorder_off", "trace"]

HERE = Path(__file__).parent


# First, as what is chosen by markers is chosen in such a hook, too.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The recorder's tests start programs, but judge no times of theirs: they need no idle machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.side_by_side)
