"""Plotly figures, one module for each subject; `bertflow_lite.plots` shows and describes them."""
