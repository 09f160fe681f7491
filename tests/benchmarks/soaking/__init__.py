"""What takes part in a soak: who records, who looks on, and whether what is measured grows."""
