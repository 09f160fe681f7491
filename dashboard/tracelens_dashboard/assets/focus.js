// Keeps the keyboard's place in the list of runs, which is drawn anew while runs are analyzed.
(() => {
  const LIST = "#run-list";
  let place = null; // the name of what has the focus in it

  const named = (element) => element.getAttribute("aria-label") || element.textContent;
  document.addEventListener("focusin", ({ target }) => {
    place = target.closest(LIST) ? named(target) : null;
  });
  document.addEventListener("pointerdown", ({ target }) => {
    if (!target.closest(LIST)) place = null;
  });
  new MutationObserver(() => {
    if (place === null || document.activeElement !== document.body) return;
    const again = [...document.querySelectorAll(`${LIST} :is(a, button, input)`)];
    again.find((element) => named(element) === place)?.focus({ preventScroll: true });
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
