"""Runs that never happened: a `Scenario` in, a `Trace` with known truth out."""
