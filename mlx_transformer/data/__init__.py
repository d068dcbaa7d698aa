"""Text files to batches of token ids."""
