"""What one access to private data reveals: frozen values with their Rényi divergence."""
