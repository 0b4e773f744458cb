"""The interface between a member and the coordinator that keeps its run's state and clock.

It has views, calls and refusals, and knows nothing of a blockchain, a server or torch.
"""
