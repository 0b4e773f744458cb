"""The terminal's screens: of a member, a centralized server and `watch`, and of a local testnet. Each has tabs, and is
a process of its own.

Owns no state: what it shows are events and where the run stands, which it is sent (`messages`) by the process that
knows them (`screen`).
"""
