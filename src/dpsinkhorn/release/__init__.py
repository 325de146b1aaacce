"""The folder an analyst receives: write, load, sample, export."""
