"""Programs that are run by hand, to make what the package stores."""
