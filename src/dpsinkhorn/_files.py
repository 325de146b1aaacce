"""The former name of `dpsinkhorn.files`."""

from dpsinkhorn.files import *  # noqa: F403
