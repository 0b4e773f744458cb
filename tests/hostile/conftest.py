"""Fixtures of the end-to-end tests, for runs with hostile members."""

from e2e.conftest import _own_environment, cluster, engine, network, run_inputs, xprocess

__all__ = ["_own_environment", "cluster", "engine", "network", "run_inputs", "xprocess"]
