"""Build and check what the owner of a run puts on chain, before anything is sent.

Covers the run's schema and data, changes of a run, and warnings. Commands and the server send the
results; nothing here sends or prints.
"""
