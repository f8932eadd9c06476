"""What chapter 11 measures: untrained networks, bags of words, weights, overlap."""
