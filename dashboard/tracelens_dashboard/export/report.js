// Draws the charts of this file, light or dark; asks nobody for anything.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const button = document.getElementById("scheme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, displayModeBar: false, responsive: true, showSendToCloud: false };

  const show = (scheme) => {
    root.dataset.scheme = scheme;
    button.textContent = scheme === "dark" ? "Light" : "Dark";
    figures.forEach((figure, index) => {
      const { data, layout } = figure[scheme];
      window.Plotly.react(`chart-${index}`, data, layout, config);
    });
  };
  button.hidden = false;
  button.addEventListener("click", () => show(root.dataset.scheme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", (event) => show(event.matches ? "dark" : "light"));
  show(dark.matches ? "dark" : "light");
})();
