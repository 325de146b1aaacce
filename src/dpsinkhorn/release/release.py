"""A release in memory: a generator, what it guarantees, samples from it, and pictures of these."""

from __future__ import annotations

import math
import os
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from dpsinkhorn import _checks
from dpsinkhorn.errors import ReleaseError
from dpsinkhorn.files import failing_as, new_file
from dpsinkhorn.generators import (
    Generator,
    GeneratorConfig,
    GeneratorError,
    Variation,
    check_probabilities,
    choose_device,
    draw_labels,
    draw_latents,
    frozen_copy,
)
from dpsinkhorn.release.statement import LABEL_SOURCES, About, PrivacyStatement

_CACHED = 2**21  # activations per batch on a CPU: what its caches hold
_SHOWN = 20  # names of classes in a message
_LONGEST_NAME = 200
_FITTING = 2**26  # on a GPU: what keeps it busy and fits into any


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """A generator that may be sampled without end, and its privacy statement; `dpsinkhorn.load` makes one."""

    generator: Generator
    privacy: PrivacyStatement
    releasable: bool
    """Whether it may leave the curator's hands; `False` for seeded or non-private training."""
    about: About = field(default_factory=About)
    """Title, description, purpose and the like, as the curator stated them."""
    label_probabilities: tuple[float, ...] | None = None
    class_names: tuple[str, ...] = ()
    label_source: str | None = None
    """How the probabilities were set, a key of `LABEL_SOURCES`; `None` without classes, or if not known."""
    value_range: tuple[float, float] | None = None
    """What pixels 0 and 255 of samples stand for in the original images, where that is known."""
    _frozen: dict[torch.device, Generator] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what a stranger may have written, lists in the place of tuples included."""
        names, limits = self.class_names, self.value_range
        if self.classes and isinstance(self.label_probabilities, (list, tuple)):
            try:
                probabilities = check_probabilities(self.label_probabilities, self.classes)
            except GeneratorError as error:
                raise ReleaseError(str(error)) from None
            object.__setattr__(self, "label_probabilities", probabilities)
        elif self.classes:
            raise ReleaseError("label_probabilities must be a list with a probability for each class")
        elif self.label_probabilities is not None or self.label_source is not None:
            raise ReleaseError("a generator without classes has no label_probabilities, and no label_source")
        if not isinstance(names, (list, tuple)) or len(names) not in (0, self.classes):
            raise ReleaseError(f"there must be no class names, or {self.classes} of them, one per class")
        for name in names:
            _checks.text(name, "a class name", ReleaseError, longest=_LONGEST_NAME)
        if len(set(names)) != len(names):
            raise ReleaseError("class names must differ from each other")
        object.__setattr__(self, "class_names", tuple(names))
        if self.label_source is not None:
            _checks.choice(self.label_source, "label_source", ReleaseError, choices=tuple(LABEL_SOURCES))
        if limits is not None:
            if not isinstance(limits, (list, tuple)) or len(limits) != 2:
                raise ReleaseError("value_range must be two numbers")
            low, high = (_checks.number(end, "each end of value_range", ReleaseError) for end in limits)
            if low >= high:
                raise ReleaseError("value_range must go from a lower to a higher number")
            object.__setattr__(self, "value_range", (low, high))

    def __repr__(self) -> str:
        channels, height, width = self.image_shape
        labels = f"{self.classes} classes" if self.classes else "unlabelled"
        whom = f" for each {self.privacy.unit}" if self.privacy.private else ""
        barred = "" if self.releasable else ", NOT FOR RELEASE"
        return (
            f"Release({self.title!r}: images of {height} x {width} x {channels}, {labels}, "
            f"{self.privacy.guarantee}{whom}{barred})"
        )

    @property
    def title(self) -> str:
        """The heading of the model card."""
        return self.about.title

    @property
    def config(self) -> GeneratorConfig:
        """What the generator is made of."""
        return self.generator.config

    @property
    def classes(self) -> int:
        """The number of classes; 0 where the images have no labels."""
        return self.config.classes

    @property
    def labels_in_words(self) -> str:
        """How often each class is drawn, and who set that, in words."""
        if not self.classes:
            return "none"
        shares = self.label_probabilities or (1.0,)
        even = "uniform" if max(shares) - min(shares) < 1e-9 else ""
        return LABEL_SOURCES.get(self.label_source or even, "classes in the shares that config.json has")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.config.image_shape

    @property
    def statement(self) -> dict[str, Any]:
        """What goes along with images drawn from it, as plain JSON: what they are, classes, guarantee."""
        privacy = self.privacy.to_json()
        return {
            "generator": "dpsinkhorn",
            "synthetic": True,
            **asdict(self.about),
            "classes": self.classes,
            "class_names": list(self.class_names),
            "label_probabilities": list(self.label_probabilities or ()),
            "value_range": None if self.value_range is None else list(self.value_range),
            "privacy": self.privacy.summary,
            **{name: privacy[name] for name in ("epsilon", "delta", "unit", "adjacency")},
            "releasable": self.releasable,
        }

    def sample(
        self,
        count: int,
        labels: int | ArrayLike | None = None,
        *,
        random_state: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
        vary: bool = False,
        variation: Variation | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
        """Draw images, and their labels.

        Args:
            count: How many.
            labels: `None` draws them from the release's own distribution, a number asks for images of that
                class, an array of `count` numbers for one image each. Where classes have names, these will do
                in the place of numbers.
            random_state: A seed: the same gives the same images, on the same machine and device, and with a
                variation at the same `batch_size`; `None` draws afresh.
            batch_size: Images per pass; by default what suits the device.
            device: By default the GPU where there is one.
            precision: `bfloat16` takes half the time on processors that have it, far longer on others, and
                moves pixels by less than a grey level on average, and by some at most.
            vary: Change every image a little at random, by the release's own `config.variation`, if it has
                one. That is augmentation, for classifiers that are to be trained on the images; otherwise
                these are as the generator renders them.
            variation: Changes of your own choice, in place of the release's.
            progress: Called with the number of images of every finished pass.

        Returns:
            Images, uint8, (count, height, width) or (count, height, width, 3), and labels, int64, (count,),
            or `None` where the release has no classes.
        """
        if not _is_whole(count) or count < 1:
            raise ReleaseError(f"count must be a whole number from 1 upwards, not {count}")
        if random_state is not None and not (_is_whole(random_state) and 0 <= random_state < 2**63):
            raise ReleaseError(f"random_state (--seed) must be from 0 to below 2^63, not {random_state}")
        if batch_size is not None and not (_is_whole(batch_size) and batch_size >= 1):
            raise ReleaseError(f"batch_size must be a whole number from 1 upwards, not {batch_size}")
        # pixels, latents, a label and the number it was drawn from
        if count * (self.config.points + 4 * self.config.latent + 16) > psutil.virtual_memory().total:
            raise ReleaseError(f"{count} images do not fit into memory; draw fewer at a time")
        if precision not in ("float32", "bfloat16"):
            raise ReleaseError(f"precision must be float32 or bfloat16, not {precision}")
        own = self.config.variation if vary else Variation()
        varied = own if variation is None else variation
        where = choose_device(device, ReleaseError)
        draws = torch.Generator()
        if random_state is None:
            draws.seed()
        else:
            draws.manual_seed(int(random_state))
        chosen = self._labels(int(count), labels, draws)
        latents = draw_latents(int(count), self.config.latent, draws)

        variations = torch.Generator(where)
        if varied:
            variations.manual_seed(int(torch.randint(2**62, (), generator=draws)))

        network = self._network(where)
        channels, height, width = self.image_shape
        size = (height, width) if channels == 1 else (height, width, channels)
        images = np.empty((count, *size), dtype=np.uint8)
        step = batch_size or _batch_size(self.config, where)
        cast = torch.autocast(where.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
        with torch.inference_mode():
            for start in range(0, count, step):
                rows = slice(start, start + step)
                with cast:
                    shown = None if chosen is None else chosen[rows].to(where)
                    plain = network(latents[rows].to(where), shown).float()
                if not torch.isfinite(plain.sum()):
                    raise ReleaseError("the generator of this release renders numbers that are not finite")
                images[rows] = to_uint8(varied(plain, variations))
                if progress is not None:
                    progress(len(images[rows]))
        return images, None if chosen is None else chosen.numpy()

    def push_to_hub(self, name: str, *, token: str | None = None, private: bool = True) -> str:
        """Write the release to a repository of the Hugging Face Hub, and return its address.

        Args:
            name: `owner/name`. The repository is made where there is none.
            token: By default the one that `hf auth login` keeps.
            private: Whether a new repository is private at first.
        """
        from dpsinkhorn.release import folder, hub

        if not self.releasable:
            raise ReleaseError("this release is marked NOT FOR RELEASE; it is not pushed")
        with tempfile.TemporaryDirectory() as place:
            folder.save_release(Path(place) / "release", self)
            return hub.upload(Path(place) / "release", name, folder.FILES, token=token, private=private)

    def _labels(self, count: int, labels: int | ArrayLike | None, draws: torch.Generator) -> Tensor | None:
        if not self.classes:
            if labels is not None:
                raise ReleaseError("this release has no classes; leave the labels out")
            return None
        if labels is None:
            probabilities: Sequence[float] = self.label_probabilities or [1 / self.classes] * self.classes
            return draw_labels(count, probabilities, draws)
        array = np.asarray(labels)
        if array.dtype.kind in "UO" and array.size and all(isinstance(name, str) for name in array.flat):
            array = self._numbers_of(array)
        if array.ndim == 0:
            array = np.full(count, array)
        if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
            raise ReleaseError(
                f"labels must be one class (its number or name) or an array of {count} of them"
            )
        if array.min() < 0 or array.max() >= self.classes:
            raise ReleaseError(f"labels must be from 0 to {self.classes - 1}")
        return torch.from_numpy(array.astype(np.int64))

    def _numbers_of(self, names: NDArray[Any]) -> NDArray[np.int64]:
        places = {name: place for place, name in enumerate(self.class_names)}
        unknown = next((name for name in names.flat if name not in places), None)
        if unknown is not None:
            more = f" and {self.classes - _SHOWN} more" if self.classes > _SHOWN else ""
            known = ", which have no names"
            if places:
                known = f": they are {', '.join(self.class_names[:_SHOWN])}{more}"
            raise ReleaseError(
                f"{str(unknown)!r} is none of the classes{known}; "
                f"numbers from 0 to {self.classes - 1} will do too"
            )
        return np.array([places[name] for name in names.flat], dtype=np.int64).reshape(names.shape)

    def _network(self, device: torch.device) -> Generator:
        if device not in self._frozen:
            self._frozen[device] = frozen_copy(self.generator).to(device)
        return self._frozen[device]


def to_uint8(images: Tensor) -> NDArray[np.uint8]:
    """Turn a network's images (n, channels, height, width) into bytes: -1 becomes 0, and 1 255.

    Returns:
        (n, height, width) for one channel, else (n, height, width, channels).

    >>> to_uint8(torch.tensor([-1.0, 0.0, 1.0]).reshape(1, 1, 1, 3)).tolist()
    [[[0, 128, 255]]]
    """
    pixels = images.detach().add(1).mul(127.5).round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    array: NDArray[np.uint8] = pixels.cpu().numpy()
    return array[..., 0] if images.shape[1] == 1 else array


def printable(name: str) -> str:
    """Mend the name of a class, which may hold anything.

    >>> printable("well\\n")
    'well?'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))[:_LONGEST_NAME]


def _batch_size(config: GeneratorConfig, device: torch.device) -> int:
    budget = _CACHED if device.type == "cpu" else _FITTING
    fitting = max(1, min(budget // config.activations, 2**15))  # a launch takes 65,535 along one dimension
    return int(2 ** math.floor(math.log2(fitting)))  # convolutions are quickest at powers of two


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


# ---- pictures of samples


_GAP = 2
_GAP_COLOUR = "#a0a0a0"  # neither black nor white, else strokes that reach the border run on into it
_SMALLEST_TILE = 84  # pixels; smaller images are enlarged until they can be seen
_SMOOTHED = 16  # images of fewer pixels a side are enlarged smoothly: of squares the eye sees nothing else
_MARGIN = 28  # for the labels, at least
_WIDEST = 150  # pixels of a label; a longer name is cut
_SPACE = 5  # on either side of it
_NO_LETTER = "\uffff"  # stands for no character, and so is in no font


def grid_picture(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    path: str | os.PathLike[str],
    *,
    columns: int = 10,
    rows: int = 20,
    class_names: Sequence[str] = (),
) -> None:
    """Draw images into a PNG file: a row per class with its name or number, or without labels as they come.

    At most `rows` rows of at most `columns` images are drawn, the first ones of every class. A name that the
    font cannot draw is left to its number.

    >>> import tempfile
    >>> images = np.zeros((20, 8, 8), dtype=np.uint8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     grid_picture(images, np.repeat([0, 1], 10), f"{folder}/grid.png")
    ...     with Image.open(f"{folder}/grid.png") as picture:
    ...         picture.size
    (928, 178)
    """
    picture = grid_image(images, labels, columns=columns, rows=rows, class_names=class_names)
    with failing_as(ReleaseError, f"cannot write {path}"), new_file(Path(path)) as draft:
        picture.save(draft, format="PNG")


def grid_image(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    columns: int = 10,
    rows: int = 20,
    class_names: Sequence[str] = (),
) -> Image.Image:
    """Return the picture of `grid_picture`, in memory.

    >>> grid_image(np.zeros((4, 28, 28, 3), dtype=np.uint8), None, columns=2).size
    (170, 170)
    """
    images, labels = check_images(images, labels)
    if columns < 1 or rows < 1:
        raise ReleaseError("a grid needs at least one row and one column")
    lines = _lines(len(images), labels, columns, rows)
    font = ImageFont.load_default()
    titles = _titles([label for label, _ in lines if label is not None], class_names, font)
    widest = max((math.ceil(font.getlength(title)) for title in titles), default=0)
    margin = 0 if labels is None else max(_MARGIN, widest + 2 * _SPACE)
    height, width = images.shape[1:3]
    scale = max(1, math.ceil(_SMALLEST_TILE / max(height, width)))
    smooth = max(height, width) < _SMOOTHED
    resampling = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    wide, high = width * scale + _GAP, height * scale + _GAP
    across = max(len(line) for _, line in lines)
    # no gap after the last tile, but a gap after the margin
    size = (margin + (_GAP if margin else 0) + across * wide - _GAP, len(lines) * high - _GAP)
    picture = Image.new("L" if images.ndim == 3 else "RGB", (max(size[0], 1), max(size[1], 1)), "white")
    pen = ImageDraw.Draw(picture)
    left = margin + (_GAP if margin else 0)
    for row, (_, line) in enumerate(lines):
        top = row * high
        if titles:
            pen.text((margin / 2, top + height * scale / 2), titles[row], "black", font, anchor="mm")
        for column, index in enumerate(line):
            side = left + column * wide
            # around the tile; what would reach beyond the picture is cut off
            pen.rectangle(
                (side - _GAP if column else side, top - _GAP, side + wide - 1, top + high - 1), _GAP_COLOUR
            )
            tile = Image.fromarray(images[index]).resize((wide - _GAP, high - _GAP), resampling)
            picture.paste(tile, (side, top))
    return picture


def _lines(
    count: int, labels: NDArray[np.int64] | None, columns: int, rows: int
) -> Sequence[tuple[int | None, Sequence[int]]]:
    """Return what each row shows: its label, and the indices of its images."""
    if labels is None:
        starts = range(0, min(count, rows * columns), columns)
        return [(None, range(start, min(start + columns, count))) for start in starts]
    present = np.unique(labels)[:rows]
    return [(int(label), np.flatnonzero(labels == label)[:columns].tolist()) for label in present]


def _titles(
    labels: Sequence[int], class_names: Sequence[str], font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[str]:
    """Return what to write beside each row: the name of the class, cut where it is long, or its number."""
    titles = []
    for label in labels:
        name = class_names[label].strip() if label < len(class_names) else ""
        forms = (form for form in (name, _without_accents(name)) if form and _can_draw(form, font))
        titles.append(_cut(next(forms, str(label)), font))
    # cut names, or a name that is the number of another class, must not read alike
    return [
        title if titles.count(title) == 1 else _cut(f"{label}: {title}", font)
        for label, title in zip(labels, titles, strict=True)
    ]


def _cut(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(name) <= _WIDEST:
        return name
    kept = len(name)
    while kept and font.getlength(name[:kept] + "...") > _WIDEST:
        kept -= 1
    return name[:kept].rstrip() + "..."


def _without_accents(name: str) -> str:
    """Take accents off, for a font of few letters: Pillow's own has none with accents."""
    parts = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def _can_draw(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> bool:
    """Say whether the font has every letter: it draws those that it lacks as the same box."""
    if not isinstance(font, ImageFont.FreeTypeFont):  # Pillow without FreeType
        return name.isascii()
    missing = bytes(font.getmask(_NO_LETTER))
    return all(letter.isspace() or bytes(font.getmask(letter)) != missing for letter in name)


def check_images(
    images: NDArray[np.uint8], labels: NDArray[np.int64] | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Return images (n, height, width) or (n, height, width, 3) in uint8, and labels (n,), or raise."""
    images = np.ascontiguousarray(images)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise ReleaseError(
            f"images must be uint8 of shape (n, height, width) or (n, height, width, 3), "
            f"not {images.dtype} of shape {images.shape}"
        )
    if images.size == 0:
        raise ReleaseError("there are no images")
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            raise ReleaseError(f"labels must be {len(images)} whole numbers, one per image")
        labels = labels.astype(np.int64)
        if labels.min() < 0:
            raise ReleaseError("labels must be from 0 upwards")
    return images, labels
