"""A chain or a server and the members of a run as processes of this machine, for trying things out.

Owns how such processes are started, ended and watched, and the local testnet that is made of them;
the demonstration uses the same parts. Every process is a real command; nothing here knows how a
member or a chain works.
"""
