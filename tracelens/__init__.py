"""TraceLens: records, aligns, explains and shows where distributed training loses its time.

Importing it costs about a millisecond: what a name needs is imported when the name is first used.
The recorder's functions need nothing but the standard library until a recording ends.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing takes ten times as long as all of this
if TYPE_CHECKING:
    from typing import Any, Final

    from tracelens.load import open  # noqa: A004 - `tracelens.open` is meant to read like it
    from tracelens.model.result import Report
    from tracelens.model.trace import Trace
    from tracelens.verdicts.report import analyze
    from tracelens.verdicts.whatif import whatif
    from tracelens_instrument.hooks import attach
    from tracelens_instrument.recorder import (
        counter,
        instant,
        keep,
        span,
        start,
        step,
        stop,
        traced,
    )

    __version__: str

__all__ = [
    "Report",
    "Trace",
    "__version__",
    "analyze",
    "attach",
    "counter",
    "instant",
    "keep",
    "open",
    "span",
    "start",
    "step",
    "stop",
    "traced",
    "whatif",
]

_HOMES: Final = {
    "Report": "tracelens.model.result",
    "Trace": "tracelens.model.trace",
    "analyze": "tracelens.verdicts.report",
    "attach": "tracelens_instrument.hooks",
    "counter": "tracelens_instrument.recorder",
    "instant": "tracelens_instrument.recorder",
    "keep": "tracelens_instrument.recorder",
    "open": "tracelens.load",
    "span": "tracelens_instrument.recorder",
    "start": "tracelens_instrument.recorder",
    "step": "tracelens_instrument.recorder",
    "stop": "tracelens_instrument.recorder",
    "traced": "tracelens_instrument.recorder",
    "whatif": "tracelens.verdicts.whatif",
}


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used."""
    if name == "__version__":
        return _read_version()
    module_name = _HOMES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(
            __import__(module_name, fromlist=[name]), name
        )  # importlib takes longer to load
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("polars", "scipy"):
            raise
        from tracelens.errors import MissingExtra  # noqa: PLC0415 - not needed when all is well

        raise MissingExtra.from_extra(f"tracelens.{name}", "analyze") from error
    globals()[name] = value
    return value


def _read_version() -> str:
    """Return the version that was installed: it comes from the last tag."""
    try:  # an installation writes this file
        return str(__import__("tracelens.version", fromlist=["__version__"]).__version__)
    except ModuleNotFoundError:  # a checkout that is only on the path
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
