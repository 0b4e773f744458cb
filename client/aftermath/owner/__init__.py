"""What the owner of a run puts on chain, worked out and checked before anything is sent.

Owns the run's schema and data as its config file says, a change of a run and what that changes, and
what the owner may not have meant. Commands and the server, which send it, ask here; nothing here
sends or prints.
"""
