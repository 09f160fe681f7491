"""A reader, analysis, report, hook, command or page is added by one line in a visible list."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "registry"),
    [
        ("tracelens.readers", "READERS"),
        ("tracelens.analyses", "ANALYSES"),
        ("tracelens.reports", "REPORTS"),
        ("tracelens.exports", "EXPORTS"),
        ("tracelens.comparison.formats", "COMPARISONS"),
        ("tracelens.scaling.formats", "SCALINGS"),
        ("tracelens.studies", "STUDIES"),
        ("tracelens.cli", "COMMANDS"),
        ("tracelens_instrument.hooks", "HOOKS"),
        ("tracelens_dashboard.pages", "PAGES"),
    ],
)
def test_registry_is_a_visible_list(module: str, registry: str) -> None:
    """Every extension point is a non-empty collection under its documented name."""
    assert len(getattr(import_module(module), registry)) > 0
