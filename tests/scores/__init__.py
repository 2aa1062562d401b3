"""Noisy scores: their releases, and the posterior given them."""
