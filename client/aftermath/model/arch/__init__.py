"""Architectures, each two files: what its `config.json` says, without torch, and its network."""
