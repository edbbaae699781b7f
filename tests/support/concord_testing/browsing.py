"""A window of Chromium on the pages of ``concord view``, and the check of pages for accessibility."""

from typing import Any

from playwright.sync_api import BrowserContext, Page

from concord_testing.node_packages import find_script


class Visit:
    """A window with the token, and the requests and messages that it made."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.set_default_timeout(20_000)
        self.page: Page = context.new_page()
        self.base = url.partition("/?")[0]
        self.outside: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", self._see)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(url)

    def open(self, path: str) -> Page:
        """Go to a page."""
        self.page.goto(self.base + path)
        return self.page

    def _see(self, request: Any) -> None:
        if not request.url.startswith(self.base):
            self.outside.append(request.url)


def accessibility_faults(page: Page) -> list[str]:
    """Return what axe-core, and the rules of its own that this project has, find wrong with a page."""
    page.evaluate(find_script("axe-core", "axe.min.js").read_text(encoding="utf-8"))
    faults: list[str] = page.evaluate(_AXE)
    return faults + rule_faults(page)


def rule_faults(page: Page) -> list[str]:
    """Return what the rules of this project alone find wrong with a page, its contrasts among them; fast."""
    faults: list[str] = page.evaluate(_RULES)
    return faults


# target-size is the only rule for WCAG 2.2 AA, and is switched off unless it is asked for.
_AXE = """async () => {
  const rules = { "target-size": { enabled: true } };
  const { violations } = await axe.run(document, { resultTypes: ["violations"], rules });
  return violations.flatMap(({ id, nodes }) =>
    nodes.map((node) => `${id}: ${node.html.slice(0, 200)}: ${node.failureSummary}`),
  );
}"""

# What axe-core does not check: a second h1, an id used twice, and the contrast of text in drawings, in boxes that
# scroll and over pseudo-elements, which it leaves undecided.
_RULES = """() => {
  const faults = [];
  if (document.querySelectorAll("h1").length !== 1) faults.push("expected one h1");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  const channels = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+(e-?\\d+)?/g).map(Number);
    const scale = colour.startsWith("color(") ? 255 : 1;
    return [r * scale, g * scale, b * scale, a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    if (!element) return [255, 255, 255];
    return over(channels(getComputedStyle(element).backgroundColor), ground(element.parentElement));
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const text = over(channels(element.namespaceURI.includes("svg") ? style.fill : style.color), below);
    const [high, low] = [luminance(text), luminance(below)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
  }
  return faults;
}"""
