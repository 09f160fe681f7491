// Brings the charts' library beside all else. Dash brings it itself only once the first chart is to be
// drawn; what it finds here it waits for, and the library puts itself in its place.
(() => {
  const { address } = document.currentScript.dataset;
  window.Plotly = new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => resolve());
    script.addEventListener("error", () => reject(new Error("The library that draws charts did not load.")));
    script.src = address;
    document.head.append(script);
  });
})();
