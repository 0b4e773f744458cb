"""The deterministic simulator: whole runs in one process, on virtual time.

The program is the real one in LiteSVM, the member's code is the real one; only time, the network
between members and the road to the chain are simulated. Nothing here reads the wall clock or draws
unseeded randomness.
"""
