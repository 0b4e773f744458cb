"""The terminal screens, each drawn by a process of its own."""
