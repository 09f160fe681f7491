"""A process opened up: its recorded spans, read when they are asked for, and the tracks they make."""
