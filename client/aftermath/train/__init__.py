"""The round pipeline: ties chain, peers, model, optimizer and data together for one member of a run.

Knows nothing of how those rooms work inside: clock, chain and transport are handed in as the Protocols of
`train.ports`, so the same code runs against a validator, an embedded chain or a simulator with virtual time.
"""
