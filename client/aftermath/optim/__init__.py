"""Optimizers in three parts, the bytes of results, and the exact arithmetic that applies them.

The package knows a model by its schema and named tensors. It knows nothing of networks or the
chain.
"""
