"""Generators: plain modules with a small frozen config each."""
