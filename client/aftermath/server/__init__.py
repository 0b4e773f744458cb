"""Runs without a Solana cluster: a server that keeps one run, and the clients of its members.

The server runs the coordinator program on the embedded chain. Members send it a cluster's
transactions over a connection that knows their identity (`connection`, `handshake`, `rpc_methods`),
so `chain.member` is the only client. The server also distributes peers' addresses and withdraws
members that left.
"""
