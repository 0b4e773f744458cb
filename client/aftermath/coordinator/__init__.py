"""What a member needs of whoever keeps a run's state and clock, whatever that is: views of it, the verbs, refusals.

Nothing here knows of a blockchain, a server or torch; `chain/` is the first part behind it.
"""
