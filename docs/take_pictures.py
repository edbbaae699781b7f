"""Take the pictures of the report and of ``concord view`` that the documentation shows.

They show the collection that ``make demo`` writes. Nothing is corrected in it.

Command: PYTHONPATH=tests/support python docs/take_pictures.py out/news
"""

import argparse
import tempfile
from pathlib import Path

from concord_testing import viewing
from playwright.sync_api import sync_playwright

PICTURES = {
    "view.png": "/document?id=barge-yard&name=Baxter",
    "view-search.png": "/search?q=lincoln",
    "view-queue.png": "/review?rank=3",
    "view-correct.png": "/document?id=barge-yard&at=0-6&name=Baxter",
    "view-why.png": "/why?id=barge-yard&name=Baxter",
}


# The folders above the checkout are nobody else's business.
SHORT_PATHS = """() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    text.textContent = text.textContent.replace(/\\/\\S*\\/(?=(examples|out)\\/)/g, "");
  }
}"""


def main() -> None:
    """Write the pictures beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as cache,
        viewing.served(arguments.collection, Path(cache)) as reading,
        viewing.served(arguments.collection, Path(cache), who="ada") as correcting,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=viewing.chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1240, "height": 860})
        page.set_default_timeout(120_000)
        for name, path in PICTURES.items():
            url = correcting if "at=" in path or "rank=" in path else reading
            page.goto(url)
            page.goto(url.partition("/?")[0] + path)
            page.get_by_text("are being selected").wait_for(state="hidden")
            page.evaluate(SHORT_PATHS)
            page.screenshot(path=Path(__file__).with_name(name))
        page.set_viewport_size({"width": 1280, "height": 1500})
        page.goto((arguments.collection / "_run" / "report.html").resolve().as_uri())
        page.evaluate(SHORT_PATHS)
        page.screenshot(path=Path(__file__).with_name("report.png"))
        browser.close()


if __name__ == "__main__":
    main()
