"""What holds for all tests: no example of Hypothesis fails because the machine is busy."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("hypothesis"):  # environments for one framework do without
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
    settings.load_profile("patient")
