"""The demo: a chain, a run and three unequal members on one machine.

It starts the real commands as processes, reads their events, kills one member, brings it back, and
reports.
"""
