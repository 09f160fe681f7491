"""What holds for all tests: no example of Hypothesis fails because the machine is busy.

Tests with real processes or a real browser get a second try, which the summary lists as RERUN.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("hypothesis"):  # environments for one framework do without
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
    settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test its second try, where the plugin for it is installed.

    Real processes share the machine with others, and tests side by side share a process, in which what
    one leaves behind is complained of while another runs.
    """
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            item.add_marker(pytest.mark.flaky(reruns=1))
