"""Architecture, tiers and levels, the state schema, checkpoints. Knows no chain, no peers and no
optimizer; of the network the Hugging Face Hub alone.
"""
