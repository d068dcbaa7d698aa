"""Text through the model: caches, search, translator."""
