"""Stalls and slow phases of all ranks."""
