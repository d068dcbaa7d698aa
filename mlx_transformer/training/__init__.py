"""Ids to a trained model: loss, schedule, compiled step, checkpoints, the loop."""
