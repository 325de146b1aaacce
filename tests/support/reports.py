"""Reports as tests read them."""

from __future__ import annotations

import contextlib
import datetime
import io

from dpsinkhorn.report import write_report
from support.html import check_page, read_page

DAY = datetime.date(2030, 5, 4)


def page_of(folder, **options):
    written = write_report(folder, **options)
    page = read_page(written.report.read_bytes())
    check_page(page)
    return page


def banner(page):
    (found,) = [node for node in page.all("div") if "banner" in (node.attributes.get("class") or "")]
    return found


def about(page):
    """What stands above the banner."""
    (found,) = [node for node in page.all("dl") if node.attributes["class"] == "about"]
    return dict(zip(*([node.text for node in found.all(tag)] for tag in ("dt", "dd")), strict=True))


def printed(code):
    """What a snippet of the page prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().split()


def figure(page, name="Privacy loss"):
    """The large figure of a card."""
    (card,) = [node for node in page.all("div") if node.all("dt") and node.all("dt")[0].text.startswith(name)]
    return card.all("dd")[0].text
