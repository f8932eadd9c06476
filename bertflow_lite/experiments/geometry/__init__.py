"""What chapter 4 measures: the spaces of words and sentences, layer by layer."""
