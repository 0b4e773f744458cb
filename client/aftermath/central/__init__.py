"""Runs without a Solana cluster: a server that keeps one run, and the members' way to it.

Decided: the server runs the coordinator program itself on the embedded chain, and members send it the transactions that
they would send to a cluster, signed by themselves, over a connection that knows who they are. So there is one state
machine, one set of rules and one client of it (`chain.member`); here is only what carries it (`link`), who may
(`greeting`, `gate`), and what a server can do that a chain cannot: tell members where their peers are, and withdraw
those who are gone. A member needs no RPC node, no SOL and no cluster.
"""
