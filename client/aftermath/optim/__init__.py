"""Optimizers in three parts, the bytes that results travel as, and the exact arithmetic that applies them.

Knows the model only through its schema and named tensors; knows nothing of networks or the chain.
"""
