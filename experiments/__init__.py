"""Everything that produces a number."""
