"""What `tracelens record` puts in front of every Python of the training: install the hooks, go away.

Python imports the first `sitecustomize` that it finds at start. This one makes the framework hooks
wait for their frameworks, and then runs the user's own `sitecustomize`, if one exists, as if
nothing had been in front of it. Whatever goes wrong here, the training starts.
"""

import importlib
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms here


def _install_hooks() -> None:
    if os.environ.get("TRACELENS_HOOKS") != "1" or not os.environ.get("TRACELENS_DIR"):
        return
    try:
        hooks = importlib.import_module("tracelens_instrument.hooks")
        hooks.install()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tracelens"):
            return  # another Python than the one TraceLens is installed in
        raise


def _run_next_sitecustomize() -> None:
    """Import the user's own `sitecustomize`, if the path without our folder holds one."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]  # noqa: PTH100 - as above
    this_module = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if this_module is not None:
            sys.modules["sitecustomize"] = this_module


try:
    _install_hooks()
except Exception as error:  # noqa: BLE001 - the training must start
    sys.stderr.write(f"tracelens: hooks could not be installed, the training goes on ({error!r})\n")
_run_next_sitecustomize()
