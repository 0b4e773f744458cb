"""The `train` process: its settings, what it looks at before it begins, and the real things that a
member is given.
"""
