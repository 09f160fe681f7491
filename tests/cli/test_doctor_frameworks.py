"""`tracelens doctor` says one thing of each framework."""

import pytest

from tracelens.cli import checks
from tracelens_instrument.hooks import HOOKS


def test_a_framework_with_a_hook_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all frameworks installed, each hook has one line, and none says that it has no hook."""
    monkeypatch.setattr(checks, "_find_version", lambda _package: "1.2.3")
    found = list(checks._check_frameworks())
    assert [check.name for check in found] == [hook.framework_name for hook in HOOKS]
    assert {(check.state, check.found) for check in found} == {
        ("ok", "1.2.3, recorded without a change")
    }


def test_a_framework_that_is_missing_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_find_version", lambda _package: None)
    assert {(check.state, check.found) for check in checks._check_frameworks()} == {
        ("ok", "not installed")
    }
