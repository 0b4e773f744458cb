"""What a member and a run show of themselves: events, their files and reader, the console, the terminal view, plots.

Owns no state of the run: what a member shows came through `watch.events`, and where a run stands is read off its
accounts (`watch.standing`).
"""
