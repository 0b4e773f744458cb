"""The centralized backend: a server that hosts one run, and the connection of its members.

The server runs the coordinator program on the embedded chain. Members authenticate and then send
it the transactions that they would send to a cluster, so both backends share `chain.member`. The
server also distributes the addresses of peers and withdraws members that disconnected.
"""
