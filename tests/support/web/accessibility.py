"""What people who see little, or use no mouse, meet on a page; asked of the browser, that styles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEAST: Final = 4.5  # contrast of text; WCAG 2.1, 1.4.3
MOST_STOPS: Final = 200
SERIOUS: Final = {"serious", "critical"}

# Texts whose contrast with what is behind them is too small. Words inside of bars are left out: what is
# behind them is drawn, not styled.
FAINT: Final = """(least) => {
  const parse = (text) => {
    const parts = text.match(/[\\d.]+/g)?.map(Number) || [0, 0, 0, 0];
    return text.startsWith("color(") ? [...parts.slice(0, 3).map((part) => part * 255), parts[3] ?? 1]
      : [parts[0], parts[1], parts[2], parts[3] ?? 1];
  };
  const over = (top, under) => {
    const [r, g, b, a] = top;
    return [r, g, b].map((part, at) => part * a + under[at] * (1 - a));
  };
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (colour) => {
    const parts = colour.map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (first, second) => {
    const [low, high] = [light(first), light(second)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  const judge = (element, words, style) => {
    const drawn = element.closest("svg") !== null;
    const behind = ground(element);
    const colour = parse(drawn ? style.fill : style.color);
    const opacity = drawn ? Number(style.fillOpacity) : 1;
    const ratio = contrast(over([...colour.slice(0, 3), colour[3] * opacity], behind), behind);
    if (ratio < least) found.push(`${words.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const hidden = !element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    const inside = element.closest(
      ".bartext, .slicetext, .ag-root-wrapper, script, style, noscript, [hidden]");
    const off = element.closest("[disabled], [data-disabled]");
    if (node.textContent.trim() && !hidden && !inside && !off)
      judge(element, node.textContent, getComputedStyle(element));
  }
  for (const field of document.querySelectorAll("input[placeholder]"))
    if (field.placeholder && !field.value && field.checkVisibility())
      judge(field, field.placeholder, getComputedStyle(field, "::placeholder"));
  return found;
}"""

# Things to use that have no name, and charts without a sentence.
NAMELESS: Final = """() => {
  const name = (element) => [
    element.getAttribute("aria-label"),
    (element.getAttribute("aria-labelledby") || "").split(" ")
      .map((id) => document.getElementById(id)?.textContent || "").join(""),
    element.textContent, element.title,
    ...[...(element.labels || [])].map((label) => label.textContent),
  ].find((text) => text && text.trim());
  const usable = "a[href], button, input:not([type=hidden]), select, textarea, summary, [role=switch]";
  const left = "[hidden], .ag-root-wrapper, [aria-hidden=true]";
  const seen = (element) => element.checkVisibility() && !element.closest(left);
  const things = [...document.querySelectorAll(usable)].filter(seen).filter((thing) => !name(thing));
  const charts = [...document.querySelectorAll(".dash-graph")].filter(seen)
    .filter((chart) => !name(chart.closest("[role=img]") || document.createElement("p")));
  return [...things, ...charts].map((one) => one.outerHTML.slice(0, 160));
}"""

# What can be used by keyboard, each with a number; of radio buttons one stop serves the group.
STOPS: Final = """() => {
  const fields = "input:not([type=hidden]):not([type=radio]), select, textarea";
  const usable = `a[href], button, summary, ${fields}`;
  const seen = (thing) => thing.checkVisibility() && !thing.disabled && thing.tabIndex >= 0
    && !thing.closest("[hidden], .ag-root-wrapper, .js-plotly-plot");
  const all = [...document.querySelectorAll(usable)].filter(seen);
  all.forEach((thing, number) => { thing.dataset.stop = number; });
  return all.map((thing) => thing.getAttribute("aria-label") || thing.textContent.trim() || thing.id);
}"""

# Where the focus is, and whether that can be seen, on it or on what stands for it.
FOCUSED: Final = """() => {
  const focused = document.activeElement;
  const shown = (element) => {
    if (!element) return false;
    const style = getComputedStyle(element);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  };
  const standing = focused.closest(".finding, .card, label, .mantine-Input-input");
  const near = [focused, focused.parentElement, focused.nextElementSibling, standing];
  const name = focused.getAttribute("aria-label") || focused.textContent.trim() || focused.id;
  return [focused.dataset.stop ?? null, focused === document.body || near.some(shown), name];
}"""


def faint(page: Page) -> list[str]:
    """Return texts with less than the least contrast."""
    found: list[str] = page.evaluate(FAINT, LEAST)
    return found


def nameless(page: Page) -> list[str]:
    """Return what has no name for a screen reader."""
    found: list[str] = page.evaluate(NAMELESS)
    return found


def violations(page: Page) -> list[str]:
    """Return what Deque's axe calls serious or critical, with the element."""
    results = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]}"
        for violation in results
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


def tabbed(page: Page) -> tuple[list[str], list[str]]:
    """Press Tab through a page: return what was never reached, and where the focus was not seen."""
    names: list[str] = page.evaluate(STOPS)
    page.evaluate("document.activeElement.blur()")
    reached: set[int] = set()
    unseen: list[str] = []
    for _ in range(min(2 * len(names) + 10, MOST_STOPS)):
        page.keyboard.press("Tab")
        number, is_shown = _focused(page, names)
        if number is None:
            continue
        if number in reached and len(reached) == len(names):
            break
        reached.add(number)
        if not is_shown:
            unseen.append(names[number])
    return [name for number, name in enumerate(names) if number not in reached], unseen


def _focused(page: Page, names: list[str]) -> tuple[int | None, bool]:
    """Return which of the stops has the focus; one that was drawn anew meanwhile has its name."""
    number, is_shown, name = page.evaluate(FOCUSED)
    if number is None and name in names:
        number = names.index(name)
    return (None if number is None else int(number)), bool(is_shown)
