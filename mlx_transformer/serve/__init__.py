"""A translation server: the API, the engine that batches requests, the page."""
