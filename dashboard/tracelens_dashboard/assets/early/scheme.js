// Runs before the page is painted: without it a dark page would flash white.
// Follows the system until the user chooses otherwise. Mantine reads CHOSEN; AUTO is what we wrote there.
(() => {
  const CHOSEN = "mantine-color-scheme-value";
  const AUTO = "tracelens-system-scheme";
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const stored = window.localStorage.getItem(CHOSEN);
  const chosen = (stored === "light" || stored === "dark") && stored !== window.localStorage.getItem(AUTO);
  const scheme = chosen ? stored : system;
  window.localStorage.setItem(CHOSEN, scheme);
  window.localStorage.setItem(AUTO, chosen ? "" : scheme);
  document.documentElement.setAttribute("data-mantine-color-scheme", scheme);
})();
