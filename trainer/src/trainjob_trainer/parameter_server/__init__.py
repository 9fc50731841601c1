"""Training with parameter servers: a chief hands out steps, workers take them, servers keep the variables."""
