"""Readers of image data: names, files and folders become a checked `Dataset`."""

from dpsinkhorn.data.dataset import Dataset, check_no_empty_class, from_arrays
from dpsinkhorn.data.errors import DataError, DownloadError

__all__ = ["DataError", "Dataset", "DownloadError", "check_no_empty_class", "from_arrays"]
