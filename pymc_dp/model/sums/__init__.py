"""Sums over records: log-likelihoods of batches, clipped gradients, exact whole numbers."""
