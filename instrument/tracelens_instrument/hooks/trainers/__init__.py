"""Trainers on top of PyTorch: a file each, and what their callbacks share."""
