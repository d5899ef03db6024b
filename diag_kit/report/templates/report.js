// Draws the plots in the reader's colours, and opens what is folded before printing.
"use strict";
const dark = matchMedia("(prefers-color-scheme: dark)");
const holder = document.getElementById("specs");
const specs = holder ? JSON.parse(holder.textContent) : [];
const places = document.querySelectorAll(".drawing");

function draw(onPaper) {
  const style = getComputedStyle(document.documentElement);
  const ink = onPaper ? "#1b1f24" : style.getPropertyValue("--ink").trim();
  const rule = onPaper ? "#d5d5d5" : style.getPropertyValue("--rule").trim();
  specs.forEach((spec, index) => {
    const layout = structuredClone(spec.layout || {});
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true });
    delete layout.width;
    layout.margin = Object.assign({ t: 16, r: 16, b: 48, l: 60 }, layout.margin);
    layout.font = Object.assign({}, layout.font, { color: ink });
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      Object.assign(layout[axis], { gridcolor: rule, linecolor: rule, zerolinecolor: rule });
    }
    Plotly.react(places[index], structuredClone(spec.data), layout, { responsive: true, displaylogo: false });
  });
}

draw(false);
dark.addEventListener("change", () => draw(false));
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((one) => { one.open = true; });
  draw(true);
});
addEventListener("afterprint", () => {
  folded.forEach((one) => { one.open = false; });
  draw(false);
});
