"""The terminal screens. Each runs in its own process."""
