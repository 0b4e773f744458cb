"""One replica of a run's model on one device: how it comes to be, trains, applies, and is handed on.

Knows nothing of a run's life.
"""
