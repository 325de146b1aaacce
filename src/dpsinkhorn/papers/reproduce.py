"""`reproduce`: one table or figure of the papers, from the data to a CSV and a picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsinkhorn.errors import ReproductionError
from dpsinkhorn.files import replace_file
from dpsinkhorn.generators import choose_device
from dpsinkhorn.papers import tables
from dpsinkhorn.papers.gradients import GradientSpread, gradient_spread
from dpsinkhorn.papers.rows import Row, rows_of
from dpsinkhorn.papers.runner import Runner
from dpsinkhorn.papers.scales import DATA, SCALES, Scale, Source, open_source
from dpsinkhorn.papers.tables import Line
from dpsinkhorn.privacy import format_epsilon
from dpsinkhorn.training.watching import Watch

_DRAW = {"fig4a": tables.draw_rates, "fig4b": tables.draw_budgets, "fig5": tables.draw_debias}
_COLUMNS = 8  # samples of a class


@dataclass(frozen=True)
class Reproduction:
    """What came out, and where it was written."""

    item: str
    version: str
    scale: str
    lines: tuple[Line, ...] = ()
    spreads: Mapping[str, Sequence[GradientSpread]] = field(default_factory=dict)
    """Of Figure 4c, by generator."""
    files: tuple[Path, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.item}, {self.version} version, scale {self.scale}"


def reproduce(
    item: str,
    folder: Path,
    *,
    version: str = "final",
    scale: str | Scale = "quick",
    data: Mapping[str, str] | None = None,
    seeds: Sequence[int] | None = None,
    only: str | None = None,
    steps: int | None = None,
    protocol: str = "paper",
    device: torch.device | None = None,
    progress: Callable[[str, int, int], object] | None = None,
    watch: Watch | None = None,
) -> Reproduction:
    """Repeat a table or figure of the DP-Sinkhorn papers.

    Trainings are kept in `folder`; what is there already is not done again, so that an interrupted call goes
    on, several calls can share the work, and tables that have rows in common share them. All trainings are
    seeded, and so not for release.

    Args:
        item: One of `ITEMS`.
        folder: Where everything goes.
        version: `first` or `final`: which of the papers' versions.
        scale: `quick` (minutes on a processor, on data that come with scikit-learn) or `full`.
        data: Paths of `mnist`, `fashion-mnist` and `celeba`; by default they are looked for by name.
        seeds: One training for each, no two alike.
        only: A regular expression: carry out rows that it is found in, as "mnist real data"; others are shown
            if they are here already.
        steps: At most so many steps, whatever the scale says.
        protocol: How classifiers are trained: `paper`, as the text says, or `authors`, as their code does.
        device: By default the GPU where there is one.
        progress: Called with what is done, and the number of rows done and of all.
        watch: Called while a row is trained; an answer of True stops there, to be gone on with.
    """
    if isinstance(scale, str) and scale not in SCALES:
        raise ReproductionError(f"scale is one of {', '.join(SCALES)}, not {scale}")
    chosen = SCALES[scale] if isinstance(scale, str) else scale
    rows = rows_of(item, version)
    unknown = sorted(set(data or {}) - set(DATA))
    if unknown:
        raise ReproductionError(f"data are named {', '.join(DATA)}; there is no {unknown[0]}")
    if steps is not None and steps < 1:
        raise ReproductionError(f"steps must be 1 or more, not {steps}")
    numbers = tuple(range(chosen.seeds)) if seeds is None else tuple(seeds)
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        given = ", ".join(map(str, numbers)) or "none"
        raise ReproductionError(f"seeds must be whole numbers from 0 upwards, each once, not {given}")
    place = folder / chosen.name
    place.mkdir(parents=True, exist_ok=True)
    where = choose_device(device, ReproductionError)
    if protocol not in ("paper", "authors"):
        raise ReproductionError(f"the protocol is one of paper, authors, not {protocol}")
    runner = Runner(place, chosen, version, where, steps, watch, protocol)
    wanted = [row for row in rows if only is None or _matches(only, f"{row.data} {row.method}")]
    if not wanted:
        raise ReproductionError(f"no row of {item}, {version} version, has {only!r} in it")
    call = _Call(item, version, runner, data or {}, numbers, rows, wanted, progress or (lambda *_: None))
    if item == "fig2":
        return call.samples()
    return call.gradients() if item == "fig4c" else call.measured()


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise ReproductionError(f"{pattern!r} is not a regular expression: {error}") from error


@dataclass(frozen=True)
class _Call:
    item: str
    version: str
    runner: Runner
    paths: Mapping[str, str]
    seeds: tuple[int, ...]
    rows: list[Row]
    wanted: list[Row]
    progress: Callable[[str, int, int], object]
    opened: dict[str, Source] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """Return a data set, opened when a row first needs it."""
        if name not in self.opened:
            self.opened[name] = open_source(name, self.paths, self.runner.scale, self.runner.device)
        return self.opened[name]

    def measured(self) -> Reproduction:
        """Tables, and the figures whose points are rows."""
        work = [(row, seed) for row in self.wanted if row.kind != "quoted" for seed in self.seeds]
        for done, (row, seed) in enumerate(work):
            self.progress(f"{row.data}: {row.method}", done, len(work))
            self.runner.result(row, self.source(row.data), seed)
        lines = tuple(self._line(row) for row in self.rows)
        files = [self._write("csv", tables.to_csv(lines))]
        if self.item in _DRAW:
            picture = self._path("png")
            _DRAW[self.item]([line for line in lines if line.results], self._note(), picture)
            files.append(picture)
        return self._finished(files, lines=lines)

    def samples(self) -> Reproduction:
        """Figure 2."""
        panels, lines = [], []
        for done, row in enumerate(self.wanted):
            self.progress(f"{row.data}: {row.method}", done, len(self.wanted))
            source = self.source(row.data)
            release = self.runner.release(row, source, self.seeds[0])
            labels = np.repeat(np.arange(release.classes), _COLUMNS)
            images, _ = release.sample(len(labels), labels, random_state=0, device=self.runner.device)
            spent = release.privacy.epsilon
            title = f"{row.data}\n{row.method}\nepsilon {format_epsilon(spent, digits=3)}"
            panels.append((title, images, release.classes))
            line = {"data": row.data, "trained_on": source.title, "method": row.method, "epsilon": spent}
            lines.append(line)
        picture = self._path("png")
        tables.draw_samples(panels, self._note(), picture)
        return self._finished([picture, self._write("csv", tables.csv_of(lines))])

    def gradients(self) -> Reproduction:
        """Figure 4c."""
        spreads = {}
        for done, row in enumerate(self.wanted):
            self.progress(f"{row.data}: {row.method}", done, len(self.wanted))
            spreads[row.series] = self._spread(row)
        table = [{"generator": name, **asdict(p)} for name, points in spreads.items() for p in points]
        picture = self._path("png")
        tables.draw_gradients(spreads, self._note(), picture)
        return self._finished([picture, self._write("csv", tables.csv_of(table))], spreads=spreads)

    def _spread(self, row: Row) -> list[GradientSpread]:
        source, seed, batches = self.source(row.data), self.seeds[0], self.runner.scale.gradient_batches
        release = self.runner.release(row, source, seed)
        kept = self.runner.place(row, source, seed) / f"gradients-{batches}.json"
        if kept.is_file():
            return [GradientSpread(**point) for point in json.loads(kept.read_text(encoding="utf-8"))]
        plan = self.runner.plan(row, source, seed)
        generator = release.generator.to(self.runner.device)
        points = gradient_spread(generator, plan, source.training, batches=batches, seed=seed)
        replace_file(kept, json.dumps([asdict(point) for point in points], indent=1).encode())
        return points

    def _line(self, row: Row) -> Line:
        if row.kind == "quoted" or (row not in self.wanted and row.data not in self.opened):
            return Line(row, "", ())
        source = self.source(row.data)
        found = [self.runner.kept(row, source, seed) for seed in self.seeds]
        return Line(row, source.title, tuple(result for result in found if result is not None))

    def _note(self) -> str:
        titles = sorted({source.title for source in self.opened.values()})
        scale = self.runner.scale
        words = [f"{self.item}, {self.version} version, scale {scale.name}"]
        if self.runner.steps is not None:
            words.append(f"at most {self.runner.steps} steps")
        if scale.rate != 1:
            words.append(f"learning rates times {scale.rate:g}")
        if self.runner.protocol_name != "paper":
            words.append("the authors' classifiers")
        return f"{', '.join(words)}: {'; '.join(titles)}"

    def _path(self, ending: str) -> Path:
        protocol = "" if self.runner.protocol_name == "paper" else f"-{self.runner.protocol_name}"
        return self.runner.folder / f"{self.item}-{self.version}{protocol}.{ending}"

    def _write(self, ending: str, content: str) -> Path:
        path = self._path(ending)
        replace_file(path, content.encode())
        return path

    def _finished(self, files: Sequence[Path], **found: Any) -> Reproduction:
        return Reproduction(self.item, self.version, self.runner.scale.name, files=tuple(files), **found)
