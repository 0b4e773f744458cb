"""Token files and how to make them. Knows nothing of any other package but the base."""
