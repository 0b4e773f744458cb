"""The round pipeline: ties coordinator, peers, model, optimizer and data together for one member of a run.

Knows nothing of how those packages work inside: clock, coordinator and transport are handed in as the Protocols of
`coordinator.ports`, so the same code runs against a validator, an embedded chain or a simulator with virtual time.
"""
