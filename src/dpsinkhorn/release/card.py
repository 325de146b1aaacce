"""The model card: what a person who opens the folder reads first, in Hugging Face's form."""

from __future__ import annotations

import re

from dpsinkhorn.generators import CustomConfig
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.release.about import TRUST
from dpsinkhorn.release.release import Release
from dpsinkhorn.release.statement import PrivacyStatement

__all__ = ["model_card", "warning_of"]

_NEIGHBOURS = {
    "add-or-remove-one": "with and without that {unit}",
    "replace-one": "with that {unit} and with any other in its place",
}


def warning_of(release: Release) -> str | None:
    """Say why this must not be passed on, in a sentence, or return `None`."""
    if release.releasable:
        return None
    reasons = release.privacy.objections or ("whoever made it said so",)
    return f"NOT FOR RELEASE: {', and '.join(reasons)}."


def model_card(release: Release) -> str:
    """Return Markdown with a YAML header."""
    config, about, privacy = release.config, release.about, release.privacy
    channels, height, width = release.image_shape
    what = f"{height} x {width} {'grey' if channels == 1 else 'colour'} images"
    if release.classes:
        what += f" of {release.classes} classes"
    warning = warning_of(release)
    banner = "" if warning is None else f"> # {warning.split(':')[0]}\n> **{warning}**\n\n"
    tags = ["synthetic-data", "optimal-transport", "image-generation"]
    tags += ["differential-privacy"] if privacy.private else ["not-private"]
    tags += [] if release.releasable else ["not-for-release"]
    header = "\n".join(f"  - {tag}" for tag in tags)
    said = f"{_escaped(about.description)}\n\n" if about.description else ""
    said += "".join(
        f"**{name.capitalize()}:** {_escaped(text)}\n\n"
        for name, text in (("purpose", about.purpose), ("contact", about.contact))
        if text
    )
    labels = ", labels" if release.classes else ", _"
    one_class = ""
    if release.classes:
        name = release.class_names[0] if release.class_names else 0
        one_class = f"\nsome, _ = release.sample(100, labels={name!r})  # of one class"
    network, own_class = config.kind, ""
    hint = "or `dpsinkhorn sample path/to/this/folder --count 60000 --output samples.npz`."
    if isinstance(config, CustomConfig):
        network, own_class = "a PyTorch module of its maker's own", ", generator=TheClass"
        name = config.module.replace("`", "")
        hint = f"`TheClass` is `{name}`, which whoever made this release can give you."
    notes = "".join(f"- {_escaped(note)}\n" for note in privacy.notes)
    notes = notes and f"{notes}\n"
    return f"""---
library_name: dpsinkhorn
pipeline_tag: unconditional-image-generation
tags:
{header}
# license: choose one before publishing, e.g. cc-by-4.0
---

# {_escaped(about.title)}

{banner}{said}A generator of {what}, trained with [dpsinkhorn](https://pypi.org/project/dpsinkhorn/).
**{privacy.guarantee if privacy.private else "Not private: no ε is guaranteed"}.**

![Images drawn from this generator](samples.png)

All images above are synthetic, and as the generator renders them.

## Use

```python
import dpsinkhorn

release = dpsinkhorn.load("path/to/this/folder"{own_class})
images{labels} = release.sample(1000)  # NumPy, uint8{one_class}
```

{hint} The files hold numbers and
text only; loading them runs none of their content.

{_images(release)}

What the images are good for is not measured here: figures computed from private records are not
private, and stay with whoever holds these. Have results that matter checked on the real data.

## What is guaranteed

{_guarantee(privacy)}

| | |
|---|---|
| ε | {format_epsilon(privacy.epsilon) if privacy.private else "none"} |
| δ | {privacy.delta:g} |
| neighbouring data sets | {privacy.adjacency} |
| unit of privacy | {privacy.unit} |
| accountant | {privacy.accountant} |
| mechanism | {_escaped(privacy.mechanism)} |
| noise | {_escaped(privacy.noise)} |
| ledger digest | {privacy.ledger_digest or "none"} |

{notes}`privacy.json` has every charge, so that ε can be computed again.
{_classes(release)}
## The network

{network}, {config.parameters:,} parameters, latent of {config.latent} numbers uniform on (0, 1); \
`config.json` has the rest.
"""


def _images(release: Release) -> str:
    """What an analyst must know of the images: pixels, labels, variation."""
    lines = []
    if release.value_range is not None:
        low, high = (f"{limit:.10g}" for limit in release.value_range)
        scaled = f"images / 255 * {high}" if low == "0" else f"{low} + images / 255 * ({high} - {low})"
        lines.append(
            f"- **Pixels** are whole numbers from 0 to 255. In the original images they stood for {low} to "
            f"{high}: `{scaled}` is in that range."
        )
    if release.classes:
        measured = release.label_source == "released"
        caution = "" if measured else " How frequent a class is among real images cannot be read off them."
        lines.append(f"- **Labels:** {release.labels_in_words}.{caution}")
    if release.config.variation:
        values = ", ".join(f"{name} {value:g}" for name, value in release.config.variation.values.items())
        lines.append(
            f"- **Variation:** `release.sample(1000, vary=True)`, or `--vary`, changes every image at random "
            f"({values}), by these public numbers. That is augmentation, for training classifiers on "
            "the images; it is not in the picture above, and nothing that was learnt."
        )
    return "\n".join(lines)


def _classes(release: Release) -> str:
    if not release.class_names:
        return ""
    shares = release.label_probabilities or ()
    rows = "\n".join(
        f"| {number} | {_escaped(name)} | {100 * share:.3g} % |"
        for number, (name, share) in enumerate(zip(release.class_names, shares, strict=True))
    )
    return f"\n## Classes\n\n| label | name | of what is drawn |\n|---|---|---|\n{rows}\n"


def _guarantee(privacy: PrivacyStatement) -> str:
    if not privacy.private:
        return (
            "**Nothing.** This generator was trained without privacy. It may have learnt single records, "
            "and show them."
        )
    difference = _NEIGHBOURS[privacy.adjacency].format(unit=privacy.unit)
    each = (
        "record (an image and its label)" if privacy.unit == "record" else "person, with all of their records"
    )
    epsilon = format_epsilon(privacy.epsilon)
    size = (
        f"The number of {privacy.unit}s counts as public."
        if privacy.size_is_public
        else f"The number of {privacy.unit}s is protected as well."
    )
    text = (
        f"Training was (ε, δ)-differentially private, ε = {epsilon} and δ = {privacy.delta:g}, for each "
        f"{each}: "
        f"whatever anyone does with this folder, and whatever else they know, all other records included, "
        f"the chance of any outcome differs between training {difference} by at most a factor e^ε, but for "
        f"a probability of δ. {size} Drawing more images costs no further privacy. Other releases "
        f"from the same data add to ε. {TRUST}"
    )
    if privacy.published_epsilon is not None:
        text += (
            f"\n\nThe papers' own count for this mechanism would be "
            f"{format_epsilon(privacy.published_epsilon)}; that is not a valid guarantee, and is given "
            "for comparison only."
        )
    if privacy.seeded:
        text = (
            "**Nothing against anyone who knows or guesses the seed** of this run. Against others what "
            f"follows would hold.\n\n{text}"
        )
    return text


def _escaped(text: str) -> str:
    """Escape text so that it stays text: no markup, link, HTML or formula, and within a cell of a table.

    >>> print(_escaped("<b> [x](y) | `$a$`"))
    &lt;b&gt; \\[x\\](y) \\| \\`\\$a\\$\\`
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$])", r"\\\1", text)
