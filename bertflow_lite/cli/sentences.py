"""Commands for your own sentences: fit, encode, similar, check, evaluate."""
