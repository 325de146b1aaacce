"""A picture of a report, taken in a headless browser: docs/images/report.png.

python benchmarks/report_picture.py RUN/report.html
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.browser import MISSING, find_browser, launch

TARGET = Path(__file__).parents[1] / "docs" / "images" / "report.png"
WINDOWS = ((820, 900), (360, 900))  # a desk's and a phone's
MARGIN, COLOUR = 20, "#c9d0d7"


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    pictures = []
    with sync_playwright() as playwright:
        program = find_browser(playwright)
        if program is None:
            sys.exit(MISSING)
        browser = launch(playwright, program)
        for number, (width, height) in enumerate(WINDOWS):
            view = browser.new_page(viewport={"width": width, "height": height})
            view.goto(page.as_uri())
            if number:  # the phone shows what comes further down
                view.locator("#images").scroll_into_view_if_needed()
                view.evaluate("document.querySelector('#images h2').scrollIntoView()")
            file = TARGET.with_name(f".{number}.png")
            view.screenshot(path=file)
            with Image.open(file) as picture:
                pictures.append(picture.convert("RGB"))
            file.unlink()
        browser.close()
    size = sum(picture.width for picture in pictures) + 3 * MARGIN, pictures[0].height + 2 * MARGIN
    whole = Image.new("RGB", size, COLOUR)
    place = MARGIN
    for picture in pictures:
        whole.paste(picture, (place, MARGIN))
        place += picture.width + MARGIN
    whole.quantize(128).save(TARGET, optimize=True)
    print(TARGET)


if __name__ == "__main__":
    main()
