"""The application: its server and guards, and the frame in which pages are shown."""
