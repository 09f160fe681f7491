"""GPUs, real and simulated."""
