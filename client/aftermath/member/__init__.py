"""One member's life in a run: joining, warm-up, rounds, witnessing, cooldown, ticking.

Clock, coordinator and transport are Protocols (`coordinator.ports`, `p2p.transport`). So the same
code runs against a validator, an embedded chain, or a simulator with virtual time. It does not
depend on Solana.
"""
