"""People with unequal computers training one language model together, on Solana."""
