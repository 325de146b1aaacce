"""Readers of image data: names, files and folders become a checked `Dataset`."""
