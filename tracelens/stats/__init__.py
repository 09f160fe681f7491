"""Statistics of ranks over steps: robust levels, a null model, window scans, change points."""
