"""The model card: what a person who opens the folder reads first, in Hugging Face's form."""

from __future__ import annotations

import re

import jinja2

from dpsinkhorn.generators import CustomConfig
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.release.release import Release
from dpsinkhorn.release.statement import TRUST


def warning_of(release: Release) -> str | None:
    """Say why this must not be passed on, in a sentence, or return `None`."""
    if release.releasable:
        return None
    reasons = release.privacy.objections or ("whoever made it said so",)
    return f"NOT FOR RELEASE: {', and '.join(reasons)}."


def model_card(release: Release) -> str:
    """Return Markdown with a YAML header."""
    config, privacy = release.config, release.privacy
    channels, height, width = release.image_shape
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpsinkhorn", "release"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"text": _escaped, "code": repr, "number": lambda value: f"{value:.10g}"}
    return environment.get_template("card.md.j2").render(
        release=release,
        privacy=privacy,
        warning=warning_of(release),
        channels=channels,
        height=height,
        width=width,
        own_class=config.module.replace("`", "") if isinstance(config, CustomConfig) else "",
        variation=", ".join(f"{name} {value:g}" for name, value in config.variation.values.items()),
        epsilon=format_epsilon(privacy.epsilon),
        published=format_epsilon(privacy.published_epsilon or 0.0),
        trust=TRUST,
    )


def _escaped(text: str) -> str:
    """Escape text so that it stays text: no markup, link, HTML or formula, and within a cell of a table.

    >>> print(_escaped("<b> [x](y) | `$a$`"))
    &lt;b&gt; \\[x\\](y) \\| \\`\\$a\\$\\`
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", text)
