"""One program that damages whatever a reader reads, and watches what becomes of who reads it."""
