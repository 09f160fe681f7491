"""The parts of the timeline: controls, drawing, answers, keys, and two of them side by side."""
