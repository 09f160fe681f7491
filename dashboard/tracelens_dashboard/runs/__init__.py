"""The runs that are served: their catalog, each one opened, and the one that a request is about."""
