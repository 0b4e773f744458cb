"""Peer-to-peer connections between a run's members over QUIC (iroh), authenticated by the p2p keys
on chain.

It carries announcements (small messages to all), blobs (large bytes named by BLAKE3 digest) and
requests (small calls). The caller says who the members are. `transport` is the interface, `iroh`
implements it, and `discovery` finds the peers' addresses.
"""
