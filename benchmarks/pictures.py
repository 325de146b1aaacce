"""Draw the pictures of the README and the docs.

python benchmarks/pictures.py                       # flow.png: noise becomes digits under the loss
python benchmarks/pictures.py RELEASE [RELEASE]     # samples.png: drawn from releases, a row per class
python benchmarks/pictures.py GRID.png [GRID.png]   # the same from grids, such as quality.py writes
python benchmarks/pictures.py --expected mnist fashion-mnist    # expected.png: by numbers of records and ε
python benchmarks/pictures.py RUN/report.html       # report.png: as a headless browser shows it
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional

from dpsinkhorn import DPSinkhorn, load
from dpsinkhorn.data import load_dataset
from dpsinkhorn.ot import SinkhornLoss, with_labels
from dpsinkhorn.release import grid_image
from quality import part

SHOWN = (0, 2, 6, 40)
PER_CLASS, COLUMNS = 10, 10
EXPECTED = ((500, 4), (2000, 2), (2000, 5), (2000, 10), (50_000, 1), (50_000, 10))  # records and ε


def flow() -> dict[int, torch.Tensor]:
    """The images at some steps of gradient descent, ``(100, 8, 8)`` each."""
    pixels, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    digits = pixels.float() / 8 - 1
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(10).repeat_interleave(PER_CLASS)
    images = torch.randn(len(classes), 64, generator=generator).mul_(0.7).requires_grad_()
    loss = SinkhornLoss(regularization=0.1, debias=0.0)
    optimizer = torch.optim.SGD([images], lr=0.15 * len(classes))
    shown = {}
    for step in range(max(SHOWN) + 1):
        if step in SHOWN:
            shown[step] = images.detach().clone().view(-1, 8, 8)
        batch = torch.randperm(len(digits), generator=generator)[:500]
        optimizer.zero_grad()
        data = with_labels(digits[batch], labels[batch], 10)
        loss(with_labels(images, classes, 10), data).backward()
        optimizer.step()
    return shown


def draw(shown: dict[int, torch.Tensor], path: Path) -> None:
    figure, axes = plt.subplots(1, len(shown), figsize=(11, 3.1))
    for axis, (step, images) in zip(axes, shown.items(), strict=True):
        padded = functional.pad(images, (1, 1, 1, 1), value=-1.0)
        grid = padded.view(10, COLUMNS, 10, 10).permute(0, 2, 1, 3).reshape(100, 100)
        axis.imshow(grid, cmap="gray_r", vmin=-1, vmax=1, interpolation="nearest")
        axis.set_title("noise" if step == 0 else f"step {step}", fontsize=11)
        axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_samples(sources: list[str], path: Path) -> None:
    """Ten images of each class of each release, or a grid of such, side by side."""
    grids = [grid_of(source) for source in sources]
    gap = 12
    width = sum(grid.width for grid in grids) + gap * (len(grids) - 1)
    sheet = Image.new("RGB", (width, max(grid.height for grid in grids)), "white")
    left = 0
    for grid in grids:
        sheet.paste(grid, (left, 0))
        left += grid.width + gap
    sheet.save(path, optimize=True)


def draw_expected(names: list[str], path: Path) -> None:
    """An image of each class by the default plan, by numbers of records and ε. Seeded: no releases."""
    figure, axes = plt.subplots(len(EXPECTED), len(names), figsize=(5.2 * len(names), 0.62 * len(EXPECTED)))
    for column, name in enumerate(names):
        whole = load_dataset(name)
        for (records, epsilon), axis in zip(EXPECTED, axes[:, column], strict=True):
            chosen = np.isin(
                np.arange(whole.records), np.random.default_rng(0).permutation(whole.records)[:records]
            )
            data = part(whole, chosen)
            model = DPSinkhorn(
                epsilon, value_range=data.value_range, classes=data.classes, random_state=0, anyway=True
            ).fit(np.asarray(data.images), data.labels)
            images, _ = model.release_.sample(data.classes, np.arange(data.classes), random_state=1)
            axis.imshow(np.concatenate(list(images), 1), cmap="gray", vmin=0, vmax=255)
            axis.set_xticks([])
            axis.set_yticks([])
            if not column:
                title = f"{records:,} records, ε = {epsilon}:\n{epsilon * records // data.classes:,}"
                axis.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=110)


def grid_of(source: str) -> Image.Image:
    """A release's images, or the picture that there is."""
    if source.endswith(".png"):
        return Image.open(source)
    release = load(source)
    labels = np.arange(release.classes).repeat(COLUMNS)
    images, _ = release.sample(len(labels), labels, random_state=1)
    return grid_image(images, labels, columns=COLUMNS)


def draw_report(page: Path, target: Path) -> None:
    """A report as a headless browser shows it on a desk and on a phone."""
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.browser import MISSING, find_browser, launch

    pictures, margin = [], 20
    with sync_playwright() as playwright:
        program = find_browser(playwright)
        if program is None:
            sys.exit(MISSING)
        browser = launch(playwright, program)
        for number, (width, height) in enumerate(((820, 900), (360, 900))):
            view = browser.new_page(viewport={"width": width, "height": height})
            view.goto(page.resolve().as_uri())
            if number:  # the phone shows what comes further down
                view.locator("#images").scroll_into_view_if_needed()
                view.evaluate("document.querySelector('#images h2').scrollIntoView()")
            file = target.with_name(f".{number}.png")
            view.screenshot(path=file)
            with Image.open(file) as picture:
                pictures.append(picture.convert("RGB"))
            file.unlink()
        browser.close()
    size = sum(picture.width for picture in pictures) + 3 * margin, pictures[0].height + 2 * margin
    whole = Image.new("RGB", size, "#c9d0d7")
    place = margin
    for picture in pictures:
        whole.paste(picture, (place, margin))
        place += picture.width + margin
    whole.quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "docs" / "images"
    if sys.argv[1:2] == ["--expected"]:
        draw_expected(sys.argv[2:], folder / "expected.png")
    elif sys.argv[-1].endswith(".html"):
        draw_report(Path(sys.argv[1]), folder / "report.png")
    elif len(sys.argv) > 1:
        draw_samples(sys.argv[1:], folder / "samples.png")
    else:
        draw(flow(), folder / "flow.png")
    print(f"wrote to {folder}")
