"""The dashboard's pages, asked by HTTP or seen in a real browser."""
