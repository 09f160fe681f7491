"""Links: which of them are slow, and when transfers are slow for all."""
