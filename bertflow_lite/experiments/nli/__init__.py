"""Siamese fine-tuning on natural language inference, as in Sentence-BERT and Table 3."""
