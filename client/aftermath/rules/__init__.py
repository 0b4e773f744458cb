"""The rules of a run as pure functions over its accounts.

Nothing here opens a socket, imports torch or reads a clock: callers pass everything in. So every
member, the simulator and the tests compute the same answers from the same bytes. The program has
the same rules in Rust. Tests compare both with the compiled program.
"""
