"""Peer to peer: real QUIC endpoints (iroh) between the members of a run, authenticated by the p2p
keys on chain.

Owns connections, announcements (small messages to everyone), blobs (large bytes by BLAKE3 digest)
and requests (small remote calls). Knows nothing of torch, of the chain or of training: the caller
hands in who the members are.

`transport` holds the interface, `iroh` its implementation (`open_iroh`), `discovery` where peers on
one machine find each other, `named` those whose addresses the user says.
"""
