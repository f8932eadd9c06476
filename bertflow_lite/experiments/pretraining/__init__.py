"""Pre-training a small BERT from scratch, and watching its space while it learns."""
