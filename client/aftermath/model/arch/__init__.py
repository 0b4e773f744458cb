"""Architectures. Each has two files: its config, which does not import torch, and its network."""
