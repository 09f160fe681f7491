"""Edits of a run. Each raises `InvalidArgument` with what the trace lacks to answer it."""
