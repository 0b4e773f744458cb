"""User interfaces: the terminal screens and the web observer."""
