"""Releases on the Hugging Face Hub: a repository holds the files of one release, and nothing else is read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsinkhorn.errors import ReleaseError

HUB = "hub:"
"""What the name of a repository begins with, where a folder could stand too."""
_LARGEST = 2**32  # bytes of a file: more than any generator of ours has


def upload(folder: Path, name: str, files: tuple[str, ...], *, token: str | None, private: bool) -> str:
    """Write the files of a release to a repository, which is made where there is none; return its address."""
    with _errors(name) as hub:
        api = hub.HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(files), commit_message="A private release"
        )
        return f"{api.endpoint}/{name}"


@contextlib.contextmanager
def download(name: str, files: tuple[str, ...]) -> Iterator[Path]:
    """Read the files of a release from a repository into a folder, which is gone at the end of the block.

    `name` is `owner/name`, or `owner/name@revision`.
    """
    repository, _, revision = name.partition("@")
    with tempfile.TemporaryDirectory() as folder:
        with _errors(repository) as hub:
            found = hub.HfApi().model_info(repository, revision=revision or None, files_metadata=True)
            sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
            large = next((file for file in files if sizes.get(file, 0) > _LARGEST), None)
            if large is not None:
                raise ReleaseError(f"{large} of {repository} has {sizes[large]:,} bytes: it is no release")
            for file in files:
                if file in sizes:
                    hub.hf_hub_download(repository, file, revision=found.sha, local_dir=folder)
        yield Path(folder)


@contextlib.contextmanager
def _errors(name: str) -> Iterator[Any]:
    """Hand out the library, and turn its errors into one line."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError as error:
        raise ReleaseError("huggingface_hub is missing: pip install 'dpsinkhorn[hub]'") from error
    try:
        yield hub
    except HFValidationError:
        raise ReleaseError(f"{name!r} is no name of a repository; it is owner/name") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = _ADVICE.get(status, "try again later")
        raise ReleaseError(f"the hub answered {status} for {name}: {advice}") from None
    except ReleaseError:
        raise
    except Exception as error:  # of the library's own client, which it has changed before
        raise ReleaseError(f"the hub cannot be reached for {name}: {type(error).__name__}") from None


_ADVICE = {
    401: "log in with `hf auth login`, or check the name",
    403: "your token may not do this",
    404: "there is no such repository, revision or file",
}
