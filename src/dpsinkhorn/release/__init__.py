"""The folder an analyst receives: write, load, sample, export."""

from dpsinkhorn.release.errors import ReleaseError
from dpsinkhorn.release.export import check_samples_path, write_samples
from dpsinkhorn.release.folder import load, write_release
from dpsinkhorn.release.pictures import grid_image, grid_picture
from dpsinkhorn.release.release import Release
from dpsinkhorn.release.statement import PrivacyStatement, format_epsilon

__all__ = [
    "PrivacyStatement",
    "Release",
    "ReleaseError",
    "check_samples_path",
    "format_epsilon",
    "grid_image",
    "grid_picture",
    "load",
    "write_release",
    "write_samples",
]
