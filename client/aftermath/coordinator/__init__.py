"""The interface between a member and the coordinator that keeps its run's state and clock.

It defines views, calls and refusals. It does not depend on a blockchain, a server or torch.
"""
