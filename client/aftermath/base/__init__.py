"""What every package stands on: errors, bounds on what others send, waiting, threads. Knows nothing
of any other.
"""
