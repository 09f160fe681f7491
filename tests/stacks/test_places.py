"""Files of frames are named from where they are imported, not from where this machine has them."""

import json
from pathlib import Path

import pytest

from tracelens_instrument.stacks.frame_paths import make_path_shortener

FOLDERS = ["/home/ann/run", "/opt/py/lib", "/opt/py/lib/site-packages", "", "/"]


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("/opt/py/lib/site-packages/torch/nn/functional.py", "torch/nn/functional.py"),
        ("/opt/py/lib/threading.py", "threading.py"),
        ("/home/ann/run/data/load.py", "data/load.py"),
        ("/home/ann/runner.py", "runner.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
    ],
)
def test_the_innermost_folder_counts(file: str, short: str) -> None:
    assert make_path_shortener(FOLDERS)(file) == short


def test_a_file_that_is_nowhere_imported_from_is_named_from_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    assert make_path_shortener(FOLDERS)(str(package / "module.py")) == "package/inner/module.py"


def test_modules_and_the_training_are_found_without_being_told() -> None:
    """By default it is what this process imports from that counts, and the working directory."""
    assert make_path_shortener()(json.__file__) == "json/__init__.py"
    assert not make_path_shortener()(__file__).startswith("/")
