"""Prints a dump, a pickle or JSON, from standard input as JSON; a process of its own without packages.

Pickles may name any function to call while they are loaded. This one refuses every name, so that only
plain values are left, and gives up beyond fixed amounts of memory and processor time.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from typing import NoReturn

MEMORY = 1 << 30
SECONDS = 10  # a full ring of 20,000 calls takes less than one


class PlainUnpickler(pickle.Unpickler):
    """Loads numbers, texts, lists and dictionaries, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a name."""
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and a dump has plain values only"
        )

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002 - pickle's own method
        """Refuse an object that is kept elsewhere."""
        raise pickle.UnpicklingError("it asks for an object that is not in the file")


def main() -> int:
    """Print the value, or, with 1, the reason why it cannot be loaded."""
    try:
        import resource  # noqa: PLC0415 - not on every system

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    except (ImportError, ValueError, OSError):
        pass
    try:
        content = sys.stdin.buffer.read()
        is_json = content.startswith(b"{")
        value = json.loads(content) if is_json else PlainUnpickler(io.BytesIO(content)).load()
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except Exception as error:  # noqa: BLE001 - damaged bytes raise whatever they like
        sys.stdout.write(f"{type(error).__name__}: {error}"[:500])
        return 1
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))  # lone surrogates become "?"
    return 0


if __name__ == "__main__":
    sys.exit(main())
