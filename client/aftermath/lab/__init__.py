"""Training on one machine without chain or network: one optimizer alone, or the replicas of a run
side by side.

Knows what a member computes and nothing of how members find, tell or check each other.
"""
