"""Public traces of other tools, kept beside the checkout and not in it; tests without them skip."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_PLACES: Final = [folder / "shared" / "traces" for folder in _ROOT.parents]
PUBLIC: Final = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where the folder or file of that name is not there."""
    return pytest.mark.skipif(
        not (PUBLIC / name).exists(), reason=f"../shared/traces/{name} is not there"
    )
