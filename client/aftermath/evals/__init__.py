"""Evaluate a model on named tasks, one small question at a time, so that members can evaluate
between rounds.
"""
