"""Training on one machine without a chain or a network.

Either one optimizer trains alone, or all replicas of a run train in one process. This package
knows what a member computes, and nothing of how members find, inform or check each other.
"""
