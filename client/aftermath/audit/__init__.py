"""Audits: train another member's share again, and compare the result with what it committed to.

It does not choose who is audited, fetches nothing and punishes nobody.
"""
