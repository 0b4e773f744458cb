"""Compiled loops over arrays. They know nothing of models or runs.

`optim` has the same in torch.
"""
