"""Training data: opened, shared among workers, batched, and resumed after a restart."""
