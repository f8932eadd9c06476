"""Whole models for sentence-transformers."""
