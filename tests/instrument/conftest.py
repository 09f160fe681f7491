from __future__ import annotations

from support.launch.recorder_fixtures import recorder_off, trace

__all__ = ["recorder_off", "trace"]
