"""Replays of a run with one thing changed: what a delay, a message, a server, a link costs."""
