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
    """Give every end-to-end test its second try, where the plugin for it is installed."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("end_to_end"):
                item.add_marker(pytest.mark.flaky(reruns=1))
