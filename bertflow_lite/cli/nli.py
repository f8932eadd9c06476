"""The command that fine-tunes an encoder on NLI: nli."""
