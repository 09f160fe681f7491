"""What `tracelens record` puts in front of every Python installs the hooks and is gone."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from support.launch.recording import run_command

import tracelens_instrument

NONE: Mapping[str, str] = MappingProxyType({})
AUTOLOAD = Path(tracelens_instrument.__file__).parent / "autoload"
INSTALLED = "import sys; print('tracelens_instrument.hooks' in sys.modules)"


def _python(
    code: str,
    *behind: Path,
    python: str = sys.executable,
    ours: bool = True,
    variables: Mapping[str, str] = NONE,
) -> subprocess.CompletedProcess[str]:
    """Run code as under `tracelens record`, with more folders behind ours on the path."""
    path = os.pathsep.join(map(str, (AUTOLOAD, *behind) if ours else behind))
    recording = {"TRACELENS_DIR": "unused", "TRACELENS_HOOKS": "1", "PYTHONPATH": path}
    return run_command(
        [python, "-c", code], recording | dict(variables), exit_code=None, cwd=AUTOLOAD.root
    )


def _their_own(folder: Path, code: str) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def test_hooks_are_installed() -> None:
    done = _python(INSTALLED)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_not_where_nothing_is_to_be_recorded() -> None:
    for missing in ({"TRACELENS_HOOKS": ""}, {"TRACELENS_DIR": ""}):
        assert _python(INSTALLED, variables=missing).stdout == "False\n"


def test_no_framework_is_imported() -> None:
    """It is in front of every Python of the training, also of those that never train."""
    heavy = ("torch", "mpi4py", "numpy", "pyarrow", "polars")
    done = _python(f"import sys; print([n for n in {heavy} if n in sys.modules])")
    assert done.stdout == "[]\n"


def test_the_users_own_runs_as_if_ours_were_not_there(tmp_path: Path) -> None:
    user_folder = _their_own(
        tmp_path / "own", "import sys; sys.found = (__name__, __file__, sys.path[1])"
    )
    show = "import sys, sitecustomize; print(*sys.found, sitecustomize.__file__, sep='\\n')"
    done = _python(show, user_folder)
    assert done.stderr == ""
    name, file, first_path, imported = done.stdout.splitlines()
    assert name == "sitecustomize"
    assert file == imported == str(user_folder / "sitecustomize.py")
    assert first_path != str(AUTOLOAD)


def test_our_folder_is_not_on_the_path_of_the_program() -> None:
    done = _python("import sys; print(*sys.path, sep='\\n')")
    assert str(AUTOLOAD) not in done.stdout.splitlines()


@pytest.mark.parametrize("code", ["raise ValueError('theirs')", "import no_such_module_of_theirs"])
def test_a_failing_one_of_the_users_is_reported_as_without_us(code: str, tmp_path: Path) -> None:
    """Python says what went wrong, in the same words, and starts the program."""
    own = _their_own(tmp_path / "own", code)
    done, without_us = (_python("print('ran')", own, ours=ours) for ours in (True, False))
    assert done.stdout == without_us.stdout == "ran\n"
    assert "theirs" in done.stderr
    assert done.stderr == without_us.stderr


def test_hooks_that_cannot_be_imported_cost_one_line(tmp_path: Path) -> None:
    """The training starts all the same."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "wrapt.py").write_text("raise RuntimeError('broken wrapt')")
    done = _python("print('ran')", broken)
    assert done.stdout == "ran\n"
    (line,) = done.stderr.splitlines()
    assert "the training goes on" in line
    assert "broken wrapt" in line


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="there is only this one Python")
def test_a_python_without_tracelens_starts_silently() -> None:
    """Such as one of another environment, or a tool of the system that a launcher calls."""
    other = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}")
    missing = "import importlib.util as u; print(u.find_spec('tracelens_instrument'))"
    done = _python(missing, python=other)
    assert (done.stdout, done.stderr) == ("None\n", "")
