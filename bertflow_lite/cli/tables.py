"""Commands that run the paper's tables and figures: table, figure, all, ablation."""
