"""Optimizers, the byte format of their results, and the exact arithmetic that applies results.

An optimizer has three parts: a private step, a compressor and an apply step. To this package, a
model is a schema and named tensors. It does not depend on peers or the chain.
"""
