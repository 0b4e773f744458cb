"""The rules of a run as pure functions over its accounts: committee, assignment, consensus, deadlines, schedules.

Nothing here opens a socket, imports torch or reads a clock: what a function needs is handed in, so that every member,
the simulator and the tests compute the same answers from the same bytes. The coordinator program computes the same
rules in Rust; vectors taken from the compiled program hold the two together.
"""
