"""Every hook in the list keeps the protocol, and costs nothing where its framework is not used."""

import pytest
from support.launch.recording import run_child

import tracelens as tl
from tracelens.errors import InvalidArgument
from tracelens_instrument.hooks import HOOKS
from tracelens_instrument.hooks.base import Hook


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.framework_name)
def test_a_hook_module_has_its_functions(hook: Hook) -> None:
    """Those that attach are asked by `attach`; the others find what they record by themselves."""
    pytest.importorskip(hook.framework_module)
    module = hook.load()
    assert callable(module.install)
    if hook.attachable_objects:
        assert not module.matches(object())
        assert callable(module.attach)


def test_installing_imports_no_framework() -> None:
    run_child(
        """
        import sys
        from tracelens_instrument import hooks
        hooks.install()
        loaded = {"torch", "mpi4py", "numpy", "pyarrow"} & set(sys.modules)
        assert not loaded, loaded
        """
    )


def test_what_no_hook_knows_is_refused_with_what_they_know() -> None:
    with pytest.raises(InvalidArgument, match=r"'set'.*Module.*communicator"):
        tl.attach(set())


def test_a_hook_that_cannot_be_installed_does_not_stop_the_import() -> None:
    finished = run_child(
        """
        from tracelens_instrument import hooks
        from tracelens_instrument.hooks.base import Hook
        hooks.HOOKS = (Hook("Colors", "tracelens_instrument.no_such_hook", "colorsys", "colors"),)
        hooks.install()
        import colorsys
        assert colorsys.rgb_to_hsv
        """
    )
    assert "Colors cannot be recorded (ModuleNotFoundError" in finished.stderr
