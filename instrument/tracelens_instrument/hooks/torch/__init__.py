"""PyTorch: `hook` is the line in HOOKS; the other files are a part of training each."""
