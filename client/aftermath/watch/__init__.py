"""What a member and a run show of themselves: events, the console, the terminal view, plots.

Owns no state of the run; everything it shows came through `watch.events`.
"""
