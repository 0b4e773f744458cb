"""Runs without a Solana cluster: a server that keeps one run, and the members' way to it.

The server runs the coordinator program itself, on the embedded chain. Members send it the same
transactions that a cluster would get, over a connection that knows who they are (`connection`,
`handshake`, `rpc_methods`). So there is one state machine, one set of rules and one client
(`chain.member`). The server also tells members where their peers are, and withdraws those that left.
"""
