"""Where events go: segments, the side file, the folder of both, and their conversion to Arrow."""
