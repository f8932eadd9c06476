"""The command that measures encoders that have learnt nothing: controls."""
