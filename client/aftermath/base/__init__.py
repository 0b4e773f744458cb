"""Foundations of every package: errors, limits on foreign input, concurrency, files. Imports no
other package.
"""
