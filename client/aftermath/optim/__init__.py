"""Optimizers, the byte format of their results, and the exact arithmetic that applies results.

An optimizer has three parts: a private step, a compressor and an apply step. The package sees a
model as a schema and named tensors. It does not depend on the network or the chain.
"""
