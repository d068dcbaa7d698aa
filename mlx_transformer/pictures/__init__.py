"""Pictures: attention weights, training curves, the attention page."""
