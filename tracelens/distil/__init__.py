"""What all verbs ask of a trace first: outlines of its processes, made in one pass, and kept reports."""
