"""What a model can do: named tasks, answered one small question at a time, so that a member can
between its rounds.
"""
