"""Training scripts to learn from: each packs nothing, reads one packed dataset, and fits on a page."""
