"""A local testnet: a network or server, and clients, as processes of this machine."""
