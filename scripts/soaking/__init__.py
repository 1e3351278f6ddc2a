"""Long runs of what the tests try a few times."""
