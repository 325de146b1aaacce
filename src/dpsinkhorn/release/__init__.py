"""The folder an analyst receives: write, load, sample, export."""

from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.release.export import check_samples_path, write_samples
from dpsinkhorn.release.folder import load, make_release, save_release, write_release
from dpsinkhorn.release.release import Release, grid_image, grid_picture, to_uint8
from dpsinkhorn.release.statement import LABEL_SOURCES, TRUST, USUAL_TITLE, About, PrivacyStatement

__all__ = [
    "LABEL_SOURCES",
    "TRUST",
    "USUAL_TITLE",
    "About",
    "PrivacyStatement",
    "Release",
    "ReleaseError",
    "check_samples_path",
    "grid_image",
    "grid_picture",
    "load",
    "make_release",
    "save_release",
    "to_uint8",
    "write_release",
    "write_samples",
]
