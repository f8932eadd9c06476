"""Plotly figures, one module for each subject; `figures.plots` shows and describes them."""
