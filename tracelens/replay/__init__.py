"""Replays of a run with one thing variant: what a delay, a message, a server, a link costs."""
