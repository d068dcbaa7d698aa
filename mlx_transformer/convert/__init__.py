"""Foreign checkpoints to the one model, and back."""
