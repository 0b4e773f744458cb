"""Compiled loops over arrays. They do not depend on models or runs.

`optim` has the same algorithms in torch.
"""
