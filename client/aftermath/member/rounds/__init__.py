"""One member's rounds of an epoch: planning, training, announcing, witnessing, applying."""
