"""The parts of the page Timeline: its controls, its drawing, the strip above it, what a click tells."""
