"""Parameter servers: load and placement of shards, what they are bound by, asynchronous training."""
