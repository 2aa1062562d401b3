"""Budgets, the ledger, allocations to chains, reports."""
