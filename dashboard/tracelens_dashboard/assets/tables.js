// Filters, copies and saves the rows of a table: numbers as numbers, with their unit in the heading.
(() => {
  const READ = " as read"; // components/table.py
  const SAID_MS = 2000;

  const parts = (element) => {
    const table = element.closest(".table");
    const grid = table && table.querySelector(".grid > div");
    return { table, api: grid && window.dash_ag_grid.getApi(grid.id) };
  };
  // Words are looked for in a row's cells; what is in quotes as it stands, headings before their cells, too.
  const wordsOf = (text) => [...text.toLowerCase().matchAll(/"([^"]+)"|[^\s"]+/g)];
  const has = (data, wanted) => {
    const cells = Object.entries(data).filter(([name]) => !(`${name}${READ}` in data));
    const values = cells.map(([, value]) => value ?? "").join(" ").toLowerCase();
    const named = cells.map(([name, value]) => `${name} ${value ?? ""}`).join("\n").toLowerCase();
    return wanted.every(([word, phrase]) =>
      phrase ? values.includes(phrase) || named.includes(phrase) : values.includes(word));
  };

  // The names that are chosen for all pages, where a table has any of them.
  const prefill = (table, api) => {
    const asked = (new URLSearchParams(window.location.search).get("find") ?? "").replace(/"/g, "").trim();
    const field = table.querySelector(".table-filter input, input.table-filter");
    if (!asked || !field || field.value) return;
    let there = false;
    api.forEachNode(({ data }) => { there ||= has(data, wordsOf(`"${asked}"`)); });
    if (!there) return;
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, `"${asked}"`);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  new MutationObserver(() => {
    document.querySelectorAll(".table:not([data-prefilled])").forEach((table) => {
      if (!table.querySelector(".ag-row")) return;
      table.dataset.prefilled = "";
      window.dash_ag_grid.getApiAsync(table.querySelector(".grid > div").id).then((api) => prefill(table, api));
    });
  }).observe(document.documentElement, { childList: true, subtree: true });

  // A spreadsheet would take these for formulas; names in a trace are not ours.
  const inert = (text) => (/^[=+@\t\r-]/.test(text) ? `'${text}` : text);
  const written = (value) => {
    if (value === null || value === undefined) return "";
    return typeof value === "number" ? String(value) : inert(String(value));
  };
  const quoted = (text, by) => (text.includes(by) || /["\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const lines = (api, by) => {
    const columns = api.getAllDisplayedColumns().map((column) => column.getColDef());
    const heads = columns.map(({ headerName, context }) => (context ? `${headerName} (${context.unit})` : headerName));
    const rows = [heads];
    api.forEachNodeAfterFilterAndSort(({ data }) => rows.push(columns.map(({ field }) => written(data[field]))));
    return rows.map((row) => row.map((cell) => quoted(cell, by)).join(by)).join("\r\n");
  };

  const say = (table, words) => {
    const note = table.querySelector(".table-note");
    note.textContent = words;
    setTimeout(() => { note.textContent = ""; }, SAID_MS);
  };
  const save = (text, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(["\ufeff", text, "\r\n"], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  const named = (table) => {
    const title = table.closest(".card")?.querySelector(".card-title")?.textContent || "table";
    return `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "")}.csv`;
  };

  document.addEventListener("input", (event) => {
    const field = event.target.closest && event.target.closest(".table-filter input, input.table-filter");
    if (!field) return;
    const { api } = parts(field);
    const wanted = wordsOf(field.value);
    api.setGridOption("isExternalFilterPresent", () => wanted.length > 0);
    api.setGridOption("doesExternalFilterPass", ({ data }) => has(data, wanted));
    api.onFilterChanged();
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".table-copy, .table-csv");
    if (!button) return;
    const { table, api } = parts(button);
    const rows = `${api.getDisplayedRowCount().toLocaleString("en")} rows`;
    if (button.classList.contains("table-csv")) save(lines(api, ","), named(table));
    else {
      await window.tracelensCopy(lines(api, "\t"));
      say(table, `${rows} copied`);
    }
  });
})();
