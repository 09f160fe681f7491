"""Spans and steps, and what they stand on: state, clock, names, identity, failures."""
