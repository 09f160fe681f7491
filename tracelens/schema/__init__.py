"""The treaty between recorder and analyzer: words, live record, side tables, Arrow columns, hosts."""
