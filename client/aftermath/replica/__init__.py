"""One replica of a run's model on one device: creation, training, applying, sharing.

It knows nothing of a run's life.
"""
