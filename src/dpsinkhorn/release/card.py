"""The model card: what a person who opens the folder reads first, in Hugging Face's form."""

from __future__ import annotations

from dpsinkhorn.generators import CustomConfig
from dpsinkhorn.privacy import format_epsilon
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
    config = release.config
    channels, height, width = release.image_shape
    what = f"{height} x {width} {'grey' if channels == 1 else 'colour'} images"
    if release.classes:
        what += f" of {release.classes} classes"
    warning = warning_of(release)
    banner = "" if warning is None else f"> # {warning.split(':')[0]}\n> **{warning}**\n\n"
    tags = ["synthetic-data", "optimal-transport", "image-generation"]
    tags += ["differential-privacy"] if release.privacy.private else ["not-private"]
    tags += [] if release.releasable else ["not-for-release"]
    header = "\n".join(f"  - {tag}" for tag in tags)
    labels = ", labels" if release.classes else ", _"
    one_class = (
        "\nsome, _ = release.sample(100, labels=0)             # of one class" if release.classes else ""
    )
    names = ""
    if release.class_names:
        rows = "\n".join(f"| {number} | {_cell(name)} |" for number, name in enumerate(release.class_names))
        names = f"\n## Classes\n\n| label | name |\n|---|---|\n{rows}\n"
    varied = ""
    if config.variation:
        values = ", ".join(f"{name} {value:g}" for name, value in vars(config.variation).items() if value)
        varied = (
            f"\nSampling changes every image a little at random ({values}), by these public numbers; "
            "`release.sample(1000, variation=Variation())` leaves that out."
        )
    network, own_class = config.kind, ""
    hint = "or `dpsinkhorn sample path/to/this/folder --count 60000 --output samples.npz`."
    if isinstance(config, CustomConfig):
        network, own_class = "a PyTorch module of its maker's own", ", generator=TheClass"
        hint = f"`TheClass` is `{_cell(config.module)}`, which whoever made this release can give you."
    lost = release.privacy.lost_steps
    notes = "".join(f"- {note}\n" for note in (*release.privacy.notes, *((lost,) if lost else ())))
    notes = notes and f"{notes}\n"
    return f"""---
library_name: dpsinkhorn
pipeline_tag: unconditional-image-generation
tags:
{header}
# license: choose one before publishing, e.g. cc-by-4.0
---

# {release.title}

{banner}A generator of {what}, trained with [dpsinkhorn](https://pypi.org/project/dpsinkhorn/).
**{release.privacy.guarantee if release.privacy.private else "Not private: no ε is guaranteed"}.**

![Images drawn from this generator](samples.png)

## Use

```python
import dpsinkhorn

release = dpsinkhorn.load("path/to/this/folder"{own_class})
images{labels} = release.sample(1000)                   # NumPy, uint8{one_class}
```

{hint} The files hold numbers and
text only; loading them runs none of their content.

## What is guaranteed

{_guarantee(release.privacy)}

| | |
|---|---|
| ε | {format_epsilon(release.privacy.epsilon) if release.privacy.private else "none"} |
| δ | {release.privacy.delta:g} |
| neighbouring data sets | {release.privacy.adjacency} |
| unit of privacy | {release.privacy.unit} |
| accountant | {release.privacy.accountant} |
| mechanism | {_cell(release.privacy.mechanism)} |
| noise | {_cell(release.privacy.noise)} |
| steps charged | {_count(release.privacy.steps_charged)} |
| steps kept | {_count(release.privacy.steps_kept)} |
| ledger digest | {release.privacy.ledger_digest or "none"} |

{notes}`privacy.json` has every charge, so that ε can be computed again.
{names}
## The network

{network}, {config.parameters:,} parameters, latent of {config.latent} numbers uniform on (0, 1); \
`config.json` has the rest.{varied}
"""


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
        f"from the same data add to ε."
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


def _count(steps: int | None) -> str:
    return "not told" if steps is None else f"{steps:,}"


def _cell(text: str) -> str:
    """Escape text so that it cannot break out of a table's cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
