"""Audits: train another member's share again, and compare the result with what it committed to.

It does not choose results, fetch states or eject members.
"""
