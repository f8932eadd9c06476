"""From sentences to arrays."""
