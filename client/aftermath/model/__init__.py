"""The model room: architecture, tiers and levels, the state schema, checkpoints. Knows no network and no chain."""
