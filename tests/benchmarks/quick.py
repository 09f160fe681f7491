"""The argument `--quick` of every benchmark: its smallest sizes, which show whether it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["parse_quick"]


def parse_quick(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, **smallest: Any
) -> argparse.Namespace:
    """Parse the arguments; with `--quick`, `smallest` replaces the defaults.

    Exits with an error if a quick run is to be published.
    """
    parser.add_argument(
        "--quick", action="store_true", help="the smallest sizes, in seconds: whether it works"
    )
    options = parser.parse_args(arguments)
    if not options.quick:
        return options
    if getattr(options, "publish", False):
        parser.error("a run with --quick is not published")
    parser.set_defaults(**smallest)
    return parser.parse_args(arguments)
