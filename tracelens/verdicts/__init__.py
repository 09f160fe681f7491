"""What the results of all analyses come to: the report, the ledger of losses, the verdict."""
