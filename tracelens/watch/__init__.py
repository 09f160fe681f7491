"""A running job seen from outside: its recordings, processes, stalls, and how processes end."""
