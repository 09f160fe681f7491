// What the browser does without asking the server; called by name from Python.
(() => {
  const REMEMBER_MS = 300;
  const SECOND = 1e9;
  const BESIDE_PLOT = 136; // figures/timeline/frame.py: LEFT_PX + RIGHT_PX
  let waiting = null;

  const BESIDE_ROWS = 160; // figures/timeline/plot.py: TOP_PX + BOTTOM_PX, the legend, and the card's edge

  const query = (view, pins, sort, selected, path, opened, row, find, notes) => {
    const values = new URLSearchParams();
    const now = new URLSearchParams(window.location.search);
    for (const name of ["run", "compare"]) if (now.has(name)) values.set(name, now.get(name));
    if (view.t0 > 0 || view.t1 < view.whole) {
      values.set("t0", Math.round(view.t0));
      values.set("t1", Math.round(view.t1));
    }
    if (pins && pins.length) values.set("pin", pins.join(","));
    if (view.steps) values.set("steps", view.steps.join("-"));
    if (selected) {
      const parts = [selected.lane, selected.at, selected.track].filter((part) => part != null);
      values.set("sel", parts.join("-"));
    }
    if (opened) values.set("open", opened.join(",") || "none");
    if (row) values.set("row", row);
    if (find && find.trim()) values.set("find", find.trim().slice(0, 100));
    if (notes && notes.length) values.set("note", notes.join(";"));
    if (path) values.set("path", "1");
    if (sort && sort !== "rank") values.set("sort", sort);
    return values.toString().replaceAll("%2C", ",");
  };

  const write = (...seen) => {
    if (window.location.pathname !== "/timeline") return;
    const text = query(...seen);
    const address = window.location.pathname + (text ? "?" + text : "");
    window.history.replaceState(window.history.state, "", address);
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    tracelens: {
      // Turns what Plotly says after a zoom or a drag into the page's view.
      moved(relayout, view) {
        const keep = window.dash_clientside.no_update;
        if (!relayout || !view) return keep;
        const range = relayout["xaxis.range"] || [relayout["xaxis.range[0]"], relayout["xaxis.range[1]"]];
        const [low, high] = range.map((seconds) => Math.round(seconds * SECOND));
        if (!(low < high)) return keep;
        const width = Math.min(high - low, view.whole);
        const t0 = Math.max(0, Math.min(low, view.whole - width));
        return { ...view, t0, t1: t0 + width };
      },
      // Puts into the timeline's figure what a new view changes.
      change(change, figure) {
        if (!change || !figure) return window.dash_clientside.no_update;
        const { data, layout, step_axis } = change;
        const xaxis2 = { ...figure.layout.xaxis2, ...step_axis };
        return { ...figure, data, layout: { ...figure.layout, ...layout, xaxis2 } };
      },
      // How many pixels the timeline's plot is wide: its image has as many columns, so none is dropped.
      // And how tall it can be, so that it fills the window.
      wide() {
        const graph = document.getElementById("timeline");
        const top = graph ? graph.getBoundingClientRect().top + window.scrollY : 0;
        const tall = Math.max(0, Math.round(window.innerHeight - top - BESIDE_ROWS));
        const wide = (graph?.clientWidth || window.innerWidth) - BESIDE_PLOT;
        window.tracelensDrawn(graph);
        return [wide, tall];
      },
      // Moves the timeline to a window, through the same event as the mouse.
      go(range) {
        const graph = document.querySelector("#timeline .js-plotly-plot");
        if (range && graph) window.Plotly.relayout(graph, { "xaxis.range": range });
      },
      // Scrolls to the selected row, once the plot is as tall as it will be.
      reveal(row) {
        if (!row) return;
        setTimeout(() => {
          const top = document.getElementById("timeline").getBoundingClientRect().top + row.y;
          if (top < 80 || top > window.innerHeight - 60) window.scrollBy(0, top - window.innerHeight / 2);
        }, REMEMBER_MS);
      },
      // Keeps the address bar true to what is seen, and moves the window over the strip.
      remember(view, ...shown) {
        clearTimeout(waiting);
        waiting = setTimeout(write, REMEMBER_MS, view, ...shown);
        const share = (ns) => (100 * ns) / view.whole;
        const hidden = view.t0 <= 0 && view.t1 >= view.whole;
        return {
          left: share(view.t0) + "%",
          width: share(view.t1 - view.t0) + "%",
          display: hidden ? "none" : "block",
        };
      },
      // Two timelines show one window, told relative to where a common step begins in each.
      together(upper, lower, view) {
        const keep = window.dash_clientside.no_update;
        const context = window.dash_clientside.callback_context;
        const at = context.triggered_id === "together-there" ? 1 : 0;
        const relayout = at ? lower : upper;
        if (!relayout || !view) return keep;
        const range = relayout["xaxis.range"] || [relayout["xaxis.range[0]"], relayout["xaxis.range[1]"]];
        const [t0, t1] = range.map((seconds) => Math.round(seconds * SECOND) - view.begins[at]);
        return t0 < t1 ? { ...view, t0, t1 } : keep;
      },
      // Keeps the address of a comparison true to the step that is aligned.
      aligned(view) {
        const values = new URLSearchParams(window.location.search);
        if (window.location.pathname !== "/compare" || !view || view.step == null) return;
        values.set("steps", view.step + "-" + view.step);
        window.history.replaceState(window.history.state, "", "/compare?" + values);
      },
      // Of all charts of a page, one leads somewhere: the one that was clicked.
      follow() {
        const { triggered } = window.dash_clientside.callback_context;
        const href = triggered.map(({ value }) => value).find(Boolean);
        return href ? window.tracelensCarried(href) : window.dash_clientside.no_update;
      },
      // The note that is edited has the focus.
      focus(edited) {
        const until = Date.now() + 5000; // the field comes with the next answer
        const look = () => {
          const field = document.getElementById("timeline-note-field");
          if (field) field.focus();
          else if (Date.now() < until) setTimeout(look, 30);
        };
        if (edited != null) look();
      },
      // Keeps which runs are chosen, also those that a filter hides; a box that was only drawn has no say.
      chosen(_checked, before) {
        const now = new Set(before || []);
        for (const { id, value } of window.dash_clientside.callback_context.inputs_list[0]) {
          if (value === true) now.add(id.run);
          if (value === false) now.delete(id.run);
        }
        return [[...now], now.size === 0, now.size < 2, `Compare ${now.size > 1 ? now.size + " " : ""}chosen`];
      },
      swap: (table) => [Boolean(table), !table],
      sidebar: (opened, bar) => ({ ...bar, collapsed: { mobile: !opened } }),
      arrived: () => false, // on a narrow window the sidebar covers the page it led to
      help: () => true,
      exported: (clicks) => [true, { search: window.location.search, clicks }],
      scheme(scheme) {
        if (scheme) document.body.dataset.agThemeMode = scheme;
      },
    },
  });
})();
