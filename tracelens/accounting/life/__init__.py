"""The life of a job: its attempts, how each of them ended, and what became of its wall time."""
