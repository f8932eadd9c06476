"""The experiments behind the stored runs: the paper's tables, the ablation and the controls."""
