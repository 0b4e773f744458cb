"""Architectures, tiers and levels, the state schema, and checkpoints.

It does not depend on the chain, peers or optimizers. It contacts only the Hugging Face Hub.
"""
