"""How values show themselves: a line of text each, a page in a notebook, frames of pandas.

Code that draws them belongs to upper layers, which are imported when a value is first drawn.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tracelens.errors import InvalidArgument, MissingExtra
from tracelens.model.fmt import count

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DisplayMixin", "find_frames", "to_pandas", "upper_layers"]


def upper_layers() -> Any:
    """Import `tracelens.upper_layers`, the modules that methods of the model call."""
    return import_module("tracelens.upper_layers")


class DisplayMixin:
    """A result of an analysis: its `repr` fits on a line, a notebook shows its findings and tables."""

    def __init_subclass__(cls) -> None:
        """Set the `repr` before a dataclass would, which prints whole tables."""
        super().__init_subclass__()
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = _describe_in_line  # type: ignore[method-assign]  # on the class, or a dataclass sets its own

    def to_pandas(self, table: str) -> Any:
        """Return one of its tables as a frame of pandas.

        Raises:
            InvalidArgument: it has no such table.
            MissingExtra: pandas is not installed.
        """
        return to_pandas(find_frames(self), table, type(self).__name__)

    def _repr_html_(self) -> str:
        page: str = upper_layers().to_html.write_result_fragment(self)
        return page


def find_frames(value: Any) -> dict[str, Any]:
    """Return the frames among a dataclass's fields by name; those of its parts as ``part.name``."""
    frames = {}
    for field in fields(value):
        field_value = getattr(value, field.name)
        if hasattr(field_value, "to_pandas") and hasattr(field_value, "height"):
            frames[field.name] = field_value
        elif is_dataclass(field_value) and not isinstance(field_value, type):
            frames |= {
                f"{field.name}.{name}": frame for name, frame in find_frames(field_value).items()
            }
    return frames


def to_pandas(frames: Mapping[str, Any], table: str, owner: str) -> Any:
    """Return one of some frames as a frame of pandas; `owner` names whose they are.

    Raises:
        InvalidArgument: none is called `table`.
        MissingExtra: pandas is not installed.
    """
    if table not in frames:
        tables_text = f"there are {', '.join(frames)}" if frames else "it has none"
        raise InvalidArgument(f"{owner} has no table '{table}': {tables_text}.")
    if find_spec("pandas") is None:
        raise MissingExtra.from_extra("to_pandas()", "notebook")
    frame = frames[table]
    return (frame.collect() if hasattr(frame, "collect") else frame).to_pandas()


def _describe_in_line(result: Any) -> str:
    """Return the name of a result, how many findings it has, and the rows of its tables."""
    phrases = [count(len(getattr(result, "findings", ())), "finding")]
    phrases += [
        f"{name}: {count(frame.height, 'row')}" for name, frame in find_frames(result).items()
    ]
    return f"{type(result).__name__}({', '.join(phrases)})"
