from support.launch.recorder_fixtures import recorder_off, trace

__all__ = ["recorder_off", "trace"]
