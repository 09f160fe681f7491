// Moves the timeline by buttons and keys: one way for all, through the same event as the mouse.
(() => {
  const PAGE_KEYS = /^[1-9]$/;
  const RESIZED_MS = 200;
  const KEYS = { w: "in", s: "out", a: "left", d: "right", 0: "all" };

  const moved = (how, [low, high], [first, last]) => {
    const width = high - low;
    const middle = (low + high) / 2;
    const zoom = (factor) => [middle - (width * factor) / 2, middle + (width * factor) / 2];
    const pan = (share) => [low + share * width, high + share * width];
    const make = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.3), right: () => pan(0.3) };
    if (how === "all") return [first, last];
    const [from, to] = make[how]();
    const size = Math.min(to - from, last - first);
    const start = Math.max(first, Math.min(from, last - size));
    return [start, start + size];
  };

  const ASKED = ["f", "p", "o", "n", "N", "m", "[", "]"]; // keys whose meaning the server knows
  let presses = 0;

  const press = (key) => {
    if (document.getElementById("timeline")) {
      presses += 1;
      const text = document.getElementById("timeline-search")?.value;
      window.dash_clientside.set_props("timeline-key", { data: { key, presses, text } });
    } else stepTogether(key);
  };

  // In a comparison the brackets choose the step at which both timelines are aligned.
  const stepTogether = (key) => {
    const step = document.getElementById("together-step");
    const way = { "[": -1, "]": 1 }[key];
    if (!step || !way) return;
    const value = Math.max(0, Math.min(Number(step.value) + way, Number(step.max) || Infinity));
    window.dash_clientside.set_props("together-step", { value });
  };

  const move = (how) => {
    const graph = document.querySelector("#timeline .js-plotly-plot, #together-here .js-plotly-plot");
    if (!graph || !window.Plotly) return;
    const axis = graph._fullLayout.xaxis;
    const whole = [axis.minallowed ?? -Infinity, axis.maxallowed ?? Infinity];
    if (how === "all" && !Number.isFinite(whole[0])) return;
    window.Plotly.relayout(graph, { "xaxis.range": moved(how, axis.range, whole) });
  };

  const writing = (target) =>
    target.isContentEditable ||
    (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && !/^(checkbox|radio)$/.test(target.type));

  // The plot gets another width with the window, or when the panel beside it opens or closes. Its height
  // follows the window's only: what was clicked stays where it is when the panel opens.
  let resizing = null;
  let drawn = 0; // px, of its width
  let room = window.innerHeight;
  const resized = () => {
    if (!document.getElementById("timeline")) return;
    const { set_props, tracelens } = window.dash_clientside;
    const before = drawn;
    const [wide, tall] = tracelens.wide();
    if (drawn !== before) set_props("timeline-wide", { data: wide });
    if (window.innerHeight !== room) set_props("timeline-tall", { data: tall });
    room = window.innerHeight;
  };
  const later = () => {
    clearTimeout(resizing);
    resizing = setTimeout(resized, RESIZED_MS);
  };
  window.addEventListener("resize", later);
  const sizes = new ResizeObserver(([{ target }]) => {
    if (target.clientWidth !== drawn) later();
  });
  window.tracelensDrawn = (graph) => {
    drawn = graph?.clientWidth ?? 0;
    sizes.disconnect();
    if (graph) sizes.observe(graph);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[id^='zoom-']");
    if (button) move(button.id.slice("zoom-".length));
  });

  // With Shift, a drag marks a stretch of time to be measured.
  const drag = (mode) => {
    const graph = document.querySelector("#timeline .js-plotly-plot");
    if (graph && window.Plotly && graph._fullLayout.dragmode !== mode) {
      window.Plotly.relayout(graph, { dragmode: mode });
    }
  };
  document.addEventListener("keyup", (event) => event.key === "Shift" && drag("pan"));

  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.id === "timeline-search") {
      event.target.blur();
      press(event.shiftKey ? "N" : "n");
      return;
    }
    if (event.key === "Shift" && !writing(event.target)) drag("select");
    if (writing(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.querySelector("#timeline-search, #run-search");
    if (event.key === "/" && search) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "?") document.getElementById("help-button")?.click();
    else if (ASKED.includes(event.key)) press(event.key);
    else if (event.key in KEYS) move(KEYS[event.key]);
    else if (event.key === "Escape" && !document.querySelector("[role='dialog']")) {
      document.querySelector("#timeline-details .panel-close, #selection-whole:not([disabled])")?.click();
    } else if (PAGE_KEYS.test(event.key)) document.querySelectorAll(".page-link")[event.key - 1]?.click();
  });
})();
