"""Which checkpoint is the best, and whether training ends early."""
