// Puts, edits and deletes notes of the timeline, and takes them along to other pages of the run.
(() => {
  let acts = 0;

  const act = (what) => {
    acts += 1;
    window.dash_clientside.set_props("timeline-noted", { data: { ...what, acts } });
  };
  const given = (part) => JSON.parse(part.dataset.note);

  // What was typed is kept by Enter, and by leaving the field; Escape keeps what was there before. A button
  // that is pressed meanwhile takes it along: of two requests at once, the later answer would undo the other.
  const FIELD = "timeline-note-field";
  let left = null;
  const numberOf = (field) => given(field.closest("[data-note]")).number;
  const close = (field, keeps) => {
    if (left === field) return;
    left = field;
    const number = numberOf(field);
    act(keeps ? { does: "keep", number, text: field.value } : { does: "leave", number });
  };
  const BUTTONS = "button[data-note], #note-button";
  document.addEventListener("mousedown", (event) => {
    if (document.activeElement?.id === FIELD && event.target.closest(BUTTONS)) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest(BUTTONS);
    if (!button) return;
    const field = document.getElementById(FIELD);
    const open = field && left !== field;
    const kept = open ? { number: numberOf(field), text: field.value } : null;
    if (open) left = field;
    if (button.dataset.note) act({ ...given(button), kept });
    else {
      acts += 1;
      const data = { key: "m", button: true, kept, presses: `note ${acts}` };
      window.dash_clientside.set_props("timeline-key", { data });
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.id !== FIELD || !["Enter", "Escape"].includes(event.key)) return;
    event.stopPropagation();
    close(event.target, event.key === "Enter");
  }, true);
  document.addEventListener("focusout", (event) => {
    if (event.target.id === FIELD) close(event.target, true);
  });

  // A link within the same part of the same run takes the names that are looked for along, and the notes:
  // their times count from its begin.
  const carried = (href) => {
    const now = new URLSearchParams(window.location.search);
    const [path, query] = href.split("?");
    const then = new URLSearchParams(query);
    if (now.get("run") !== then.get("run")) return href;
    const taken = ["note", "find"].filter((name) => now.has(name) && !then.has(name));
    const more = new URLSearchParams(taken.map((name) => [name, now.get(name)]));
    return taken.length ? `${path}?${query ? query + "&" : ""}${more}` : href;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='/']");
    const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    const href = link?.getAttribute("href");
    if (!plain || !href || link.target || link.hasAttribute("download") || carried(href) === href) return;
    event.preventDefault();
    event.stopPropagation();
    window.dash_clientside.set_props("go", { href: carried(href) });
  }, true);
  window.tracelensCarried = carried;
})();
