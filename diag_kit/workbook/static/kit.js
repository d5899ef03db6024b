// Runs once for a page, after the bundle: hands plotly to the plots, and keeps the notebook's one-key commands away.
globalThis.Plotly = theirs;
if (!globalThis.__diagKitPlotly) {
  // In command mode a notebook takes arrows and letters, even those meant for a slider, a list or a button in its output.
  // Its commands look for this attribute from the focused element upwards.
  window.addEventListener("keydown", ({ target, ctrlKey, metaKey }) => {
    if (target.closest?.(".dk")) target.toggleAttribute("data-lm-suppress-shortcuts", !(ctrlKey || metaKey));
  }, true);
}
globalThis.__diagKitPlotly = module.exports;
globalThis.dispatchEvent(new Event("diag-kit-plotly"));
export default { initialize() {} };
