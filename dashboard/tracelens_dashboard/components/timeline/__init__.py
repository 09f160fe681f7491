"""The parts of the timeline: controls, drawing, the inspector, keys, and two of them side by side."""
