"""Modules that take long to import are not imported to collect tests."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = ["LateModule", "skip_without"]


def skip_without(module: str) -> None:
    """Skip the tests of a file where a module is not installed, without an import of it."""
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)


@dataclass(frozen=True)
class LateModule:
    """A module that is imported when the first of its public names is used."""

    module: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what pytest asks of each object that it finds
            raise AttributeError(name)
        return getattr(import_module(self.module), name)
