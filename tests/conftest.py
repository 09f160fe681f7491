"""What holds for all tests: no example of Hypothesis fails because the machine is busy.

Tests with real processes or a real browser get a second try; a few of them may need it.
"""

import gc
from collections.abc import Generator
from importlib.util import find_spec

import pytest
from support import second_tries

if find_spec("hypothesis"):  # environments for one framework do without
    from hypothesis import HealthCheck, Phase, settings

    # The same examples in every run: a change fails by what it changes. `make explore` draws others.
    patient = settings(
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
        derandomize=True,
    )
    settings.register_profile("patient", patient)
    settings.register_profile("explore", patient, derandomize=False, database=None)
    # For those who only want to know whether a test fails, not by which smallest example.
    found = [phase for phase in Phase if phase not in {Phase.shrink, Phase.explain}]
    settings.register_profile("brief", settings.get_profile("patient"), phases=found)
    settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Count second tries, in the one process that hears of all tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(second_tries.SecondTries())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Look for no garbage during collection, and never in what it made: a third of its time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


# First, as what is chosen by markers is chosen in such a hook, too.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests with real processes a second try, where the plugin for it is installed.

    Their processes share the machine with others, which may do anything to them. No other test has that
    excuse: one that fails now and then is wrong, or has found something.
    """
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("end_to_end"):
                item.add_marker(pytest.mark.flaky(reruns=1))
