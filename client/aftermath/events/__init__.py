"""A member's events and a run's status: types, files, reader, console lines, plots, metrics,
trackers.
"""
