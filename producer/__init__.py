"""The producer: reads datasets into prompts, and feeds them to the fleet within its budgets."""
