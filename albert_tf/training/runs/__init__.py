"""A run: stretches of steps, hooks between them, what they tell."""
