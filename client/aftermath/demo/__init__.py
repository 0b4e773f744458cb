"""The main job, whole, on one machine: a chain, a run and three unequal members, driven through the
real commands.

Owns no rule of the run: it starts processes, reads their events, kills one and brings it back, and
reports what it saw.
"""
