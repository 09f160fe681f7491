"""How much of a recording is kept: what was asked for, and the last steps."""
