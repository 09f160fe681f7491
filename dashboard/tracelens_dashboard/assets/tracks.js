// Opens and closes the tracks of a process, makes rows taller by their lower edge, follows the panel.
(() => {
  const LEAST_PX = 3; // tracelens/lod/viewport.py: LEAST_ROW_PX, MOST_ROW_PX
  const MOST_PX = 80;
  const GAP_PX = 2; // between rows
  let presses = 0;
  let dragged = null;

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".row-button");
    if (!button) return;
    presses += 1;
    window.dash_clientside.set_props("timeline-toggle", { data: { key: button.dataset.track, presses } });
  });

  // The panel beside the plot leads to other spans, and can be closed: then nothing is selected.
  document.addEventListener("click", (event) => {
    const { set_props } = window.dash_clientside;
    const span = event.target.closest("[data-span]");
    if (span) {
      presses += 1;
      set_props("timeline-pointed", { data: { ...JSON.parse(span.dataset.span), presses } });
    } else if (event.target.closest(".panel-close")) {
      set_props("timeline-details", { children: null });
      set_props("timeline-selected", { data: null });
    }
  });

  const heightAt = (y) => Math.round(dragged.height + y - dragged.from);

  document.addEventListener("pointerdown", (event) => {
    if (!event.target.classList?.contains("row-edge")) return;
    event.preventDefault();
    event.target.setPointerCapture(event.pointerId);
    dragged = { from: event.clientY, height: Number(event.target.dataset.height) + GAP_PX, edge: event.target };
    dragged.edge.classList.add("dragged");
  });
  document.addEventListener("pointermove", (event) => {
    if (dragged) dragged.edge.style.transform = `translateY(${event.clientY - dragged.from}px)`;
  });
  document.addEventListener("pointerup", (event) => {
    if (!dragged) return;
    const value = Math.max(LEAST_PX, Math.min(heightAt(event.clientY), MOST_PX));
    const changed = event.clientY !== dragged.from;
    dragged.edge.classList.remove("dragged");
    dragged = null;
    if (changed) window.dash_clientside.set_props("timeline-row", { value });
  });
})();
