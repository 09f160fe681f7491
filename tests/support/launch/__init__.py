"""Starts recorders, trainings and launchers as users do, and waits for them."""
