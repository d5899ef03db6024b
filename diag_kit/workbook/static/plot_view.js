// A plot: one JSON spec in, one drawing out. Colours of text and grid come from the page's theme.
const plotly = () => new Promise((resolve) => {
  const found = () => globalThis.__diagKitPlotly && resolve(globalThis.__diagKitPlotly);
  globalThis.addEventListener("diag-kit-plotly", found);
  found();
});

const themed = (layout) => {
  const css = getComputedStyle(document.body);
  const colour = (name, otherwise) => css.getPropertyValue(name).trim() || otherwise;
  const ink = colour("--jp-ui-font-color1", "#222");
  const grid = colour("--jp-border-color2", "#ddd"), paper = colour("--jp-layout-color0", "#fff");
  const out = structuredClone(layout);
  for (const key of Object.keys(out)) {
    if (/^[xy]axis/.test(key)) out[key] = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, ...out[key] };
  }
  // A label that points at the drawing keeps it from shining through.
  out.annotations = (out.annotations ?? []).map((a) => (a.showarrow || a.bgcolor ? { ...a, bgcolor: paper } : a));
  const family = colour("--jp-ui-font-family", "system-ui, sans-serif");
  return {
    ...out, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { size: 12.5, family, color: ink, ...out.font },
    hoverlabel: { bgcolor: paper, bordercolor: grid, font: { color: ink, family } },
  };
};

async function render({ model, el }) {
  const Plotly = await plotly();
  el.classList.add("dk-plot");
  const box = document.createElement("div");
  box.setAttribute("role", "img");
  el.appendChild(box);

  let drawing = false, again = false, clickable = false;
  const draw = async () => {
    again = drawing;
    if (drawing) return;
    drawing = true;
    do {
      again = false;
      const spec = JSON.parse(model.get("spec"));
      box.style.height = `${model.get("height")}px`;
      box.setAttribute("aria-label", model.get("alt"));
      await Plotly.react(box, spec.data, themed(spec.layout), { displayModeBar: false, responsive: false });
      if (!clickable) box.on("plotly_click", ({ points: [point] }) => point?.customdata !== undefined && model.send({ chosen: point.customdata }));
      clickable = true;
    } while (again);
    drawing = false;
  };
  model.on("change:spec change:height", draw);  // before the first drawing: a change during it must not be lost
  await draw();

  const size = new ResizeObserver(() => box._fullLayout && el.offsetWidth && Plotly.Plots.resize(box));
  size.observe(el);
  const theme = new MutationObserver(draw);
  theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name"] });
  return () => {
    model.off("change:spec change:height", draw);
    size.disconnect();
    theme.disconnect();
    Plotly.purge(box);
  };
}

export default { render };
