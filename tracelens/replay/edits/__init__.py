"""What a run is replayed with instead: each edit changes lags of links, or what follows what."""
