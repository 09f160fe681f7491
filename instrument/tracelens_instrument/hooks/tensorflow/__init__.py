"""TensorFlow's parameter servers; `hook` is the line in HOOKS."""
