"""What is committed says nothing of the machine it was written on."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".cfg", ".txt", ".yml", ".yaml", ".css", ".js", ".sh", ""}
FORBIDDEN = re.compile(r"/work/|/opt/wheels|/root/\.|\bfile:///", re.IGNORECASE)


def tracked_files() -> list[Path]:
    """Every text file under version control."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files are ours")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return [ROOT / name for name in names if name and Path(name).suffix in TEXT]


def test_no_path_of_a_machine() -> None:
    """No tracked file contains an absolute path of a machine."""
    this_file = Path(__file__)
    named_paths = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in tracked_files()
        if path != this_file and path.exists()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if FORBIDDEN.search(line)
    ]
    assert named_paths == []
