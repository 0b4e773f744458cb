"""Training on one machine without a chain or a network.

Either one optimizer trains on the whole batch, or all replicas of a run train in one process. This
package computes what members compute. It has no discovery, no messages and no witnesses.
"""
