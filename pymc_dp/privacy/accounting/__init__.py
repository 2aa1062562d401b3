"""What several accesses reveal together."""
