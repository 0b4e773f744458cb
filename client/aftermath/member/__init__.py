"""One member's life in a run: joining, warm-up, rounds, witnessing, cooldown, ticking.

Clock, coordinator and transport are handed in as Protocols (`coordinator.ports`, `p2p.transport`), so that the same
code runs against a validator, an embedded chain or a simulator with virtual time. Knows nothing of Solana.
"""
