// Saves a chart as a picture: drawn by the browser, at twice its size, on the colour of its card.
(() => {
  const SCALE = 2;
  const HEADING_PX = 34;

  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  const inert = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  const words = (element) => (element ? element.textContent.trim() : "");

  const figure = (graph, card, heading) => {
    const style = getComputedStyle(card);
    const margin = { ...graph._fullLayout.margin, ...graph.layout.margin };
    const layout = {
      ...graph.layout,
      paper_bgcolor: style.backgroundColor,
      title: { text: inert(heading), x: 0.01, xanchor: "left", y: 1, yref: "container", yanchor: "top",
        pad: { t: 10 }, font: { size: 15, color: style.color } },
      margin: { ...margin, t: (margin.t || 0) + HEADING_PX },
      width: graph.clientWidth,
      height: graph.clientHeight + HEADING_PX,
      autosize: false,
    };
    return { data: graph.data, layout, config: { showSendToCloud: false } };
  };

  const keep = (address, name) => {
    const bytes = Uint8Array.from(atob(address.split(",")[1]), (letter) => letter.charCodeAt(0));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".save-png");
    const card = button && button.closest(".card");
    const graph = card && [...card.querySelectorAll(".js-plotly-plot")].pop();
    if (!graph || !window.Plotly) return;
    const chosen = document.querySelector("#run-picker");
    const run = words(document.querySelector("#run b")) || (chosen && chosen.value) || "";
    const title = words(card.querySelector(".card-title"));
    const heading = [run, title].filter(Boolean).join(" · ");
    const drawn = figure(graph, card, heading);
    const { width, height } = drawn.layout;
    const picture = await window.Plotly.toImage(drawn, { format: "png", width, height, scale: SCALE });
    const scheme = document.documentElement.dataset.mantineColorScheme || "light";
    keep(picture, `${slug(run)}-${slug(title)}-${scheme}.png`);
  });
})();
