"""How the chain moves: one file an algorithm."""
