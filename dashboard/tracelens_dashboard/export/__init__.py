"""What can be taken along: a report in one file, and a selection for other programs."""
