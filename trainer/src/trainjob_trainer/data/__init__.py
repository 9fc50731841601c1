"""Examples on their way to the steps: opened, shared among workers, batched, found again after a restart."""
