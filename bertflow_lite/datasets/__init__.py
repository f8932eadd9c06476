"""Where sentences and ratings come from."""
