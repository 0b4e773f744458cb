"""The simulator: members on virtual time, a simulated network and chain, and faults drawn from
seeds.
"""
