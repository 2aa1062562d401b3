"""Secret randomness: bits from the operating system, rounded Gaussian noise, batches."""
