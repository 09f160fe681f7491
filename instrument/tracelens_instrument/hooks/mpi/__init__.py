"""mpi4py: communicators and requests that record themselves; `hook` is the line in HOOKS."""
