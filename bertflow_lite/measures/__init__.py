"""Numbers about arrays and pairs: similarities, scores, geometry, spelling, diagnosis."""
