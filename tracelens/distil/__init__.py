"""The first pass over a run, one process at a time: what matching and alignment need of it."""
