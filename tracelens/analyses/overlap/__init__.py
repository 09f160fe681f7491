"""Overlap: how much communication compute hides, and how long gradients are on their way to use."""
