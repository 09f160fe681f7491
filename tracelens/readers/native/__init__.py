"""Reads TraceLens' own folders (docs/format.md): Arrow files, live segments, samples of stacks."""
