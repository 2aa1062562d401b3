"""What a data access costs: mechanisms, accounting, budgets, the ledger. Never imports PyMC."""
