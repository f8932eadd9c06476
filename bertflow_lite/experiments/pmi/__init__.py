"""What chapter 3 measures: PMI in a toy world and in real language models."""
