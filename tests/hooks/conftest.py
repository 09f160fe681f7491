from __future__ import annotations

from support.launch.forked import fork_server, run_ranks
from support.launch.recorder_fixtures import recorder_off, trace

__all__ = ["fork_server", "recorder_off", "run_ranks", "trace"]
