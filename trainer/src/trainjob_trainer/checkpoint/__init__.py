"""Checkpoints: each is whole or absent, one replica writes them, all read them."""
