"""The terminal screen of a member, of a centralized server and of `watch`: six tabs in a process of its own.

Owns no state: what it shows are events and where the run stands, which it is sent (`messages`) by the process that
knows them (`screen`).
"""
