"""instrument/README.md names what exists, and its example runs."""

import inspect
import re
from pathlib import Path
from typing import Any

from support.launch.recording import read_one

import tracelens as tl
from tracelens_instrument import recorder
from tracelens_instrument.core.spans import Span, Token, Values

DOCUMENT = (Path(__file__).parents[2] / "instrument" / "README.md").read_text(encoding="utf-8")


def test_example_runs(tmp_path: Path) -> None:
    """Step by step, as it stands there."""
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    batches = iter([[1, 2]] * 3)
    names: dict[str, Any] = {"steps": 3, "batches": batches, "batch": [1, 2]}
    exec(example.replace("traces/today", str(tmp_path / "t")), names)  # noqa: S102 - our own page
    tl.stop()
    recorded = read_one(tmp_path / "t")
    assert len(recorded.events) == 3 * 5
    assert [event["bytes"] for event in recorded.named("reduce")] == [1 << 20] * 3


def test_every_keyword_is_named() -> None:
    """Of start, span, step, and a use of a span."""
    for function in (tl.start, tl.span, tl.step):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                assert re.search(rf"\b{parameter.name}\b", DOCUMENT), parameter.name
    for name in Values.__annotations__:
        assert f"{name}=" in DOCUMENT


def test_every_function_is_named() -> None:
    """All that the recorder offers to users and hooks."""
    for name in recorder.__all__:
        if name not in {"Span", "Step", "Token", "now"}:
            assert re.search(rf"\b{name}\b\(?", DOCUMENT), name
    for method in ("begin", "complete"):
        assert hasattr(Span, method)
        assert f"SPAN.{method}(" in DOCUMENT
    assert "token.end(" in DOCUMENT
    assert hasattr(Token, "end")
