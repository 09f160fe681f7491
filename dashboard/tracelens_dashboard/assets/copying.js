// Copies a text, or the address of what is shown; other scripts of this folder use the first.
(() => {
  const SAID_MS = 1500;

  // Browsers give the clipboard only to pages of this machine, or that came encrypted.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    return undefined;
  };

  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy-link");
    if (!button) return;
    await copy(window.location.href);
    const label = button.querySelector(".mantine-Button-label") || button;
    const before = label.textContent;
    label.textContent = "Copied";
    setTimeout(() => { label.textContent = before; }, SAID_MS);
  });
  window.tracelensCopy = copy;
})();
