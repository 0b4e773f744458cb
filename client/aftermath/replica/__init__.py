"""One replica of a run's model on one device: creation, training, applying, sharing.

It does not depend on the phases of a run.
"""
