"""Readers of image data: names, files and folders become a checked `Dataset`."""

from dpsinkhorn.data.dataset import Dataset, check_every_class, from_arrays
from dpsinkhorn.data.labels import number_classes
from dpsinkhorn.data.libraries import read_records
from dpsinkhorn.data.load import SPLITS, has_parts, load_dataset, load_parts
from dpsinkhorn.data.named import KNOWN, KnownDataset, data_folder, find_known, get
from dpsinkhorn.data.shards import ShardedDataset, write_shards
from dpsinkhorn.errors import DataError, DownloadError

__all__ = [
    "KNOWN",
    "SPLITS",
    "DataError",
    "Dataset",
    "DownloadError",
    "KnownDataset",
    "ShardedDataset",
    "check_every_class",
    "data_folder",
    "find_known",
    "from_arrays",
    "get",
    "has_parts",
    "load_dataset",
    "load_parts",
    "number_classes",
    "read_records",
    "write_shards",
]
