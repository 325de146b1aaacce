"""Sanitizers: where the privacy barrier stands."""
