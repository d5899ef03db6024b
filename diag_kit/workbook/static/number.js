// A slider and a number box over one value, under one label that says where the value comes from.
function render({ model, el }) {
  const id = `dk-number-${Math.random().toString(36).slice(2)}`;
  el.classList.add("dk-control");
  el.innerHTML = `<div class="dk-control-head"><label for="${id}"></label><span class="dk-unit"></span><span class="dk-origin" id="${id}-from"></span></div>
    <div class="dk-control-row"><input id="${id}" type="range" aria-describedby="${id}-from"><input type="number"></div>`;
  const [label, origin, unit] = [".dk-control-head label", ".dk-origin", ".dk-unit"].map((s) => el.querySelector(s));
  const [slider, box] = el.querySelectorAll("input");

  const nearest = (value) => {
    const stops = model.get("stops");
    return stops.reduce((best, s, i) => (Math.abs(s - value) < Math.abs(stops[best] - value) ? i : best), 0);
  };
  const show = () => {
    const value = model.get("value"), stops = model.get("stops"), name = model.get("label");
    label.textContent = name;
    const words = value === 1 ? model.get("unit").replace(/s$/, "") : model.get("unit");
    unit.textContent = words;
    origin.textContent = `\u200e${model.get("origin")}\u200e`;  // cut in front, yet read from the left
    origin.title = model.get("origin");
    origin.classList.toggle("dk-assumed", model.get("assumed"));
    slider.hidden = stops.length < 2;
    Object.assign(slider, { min: 0, max: Math.max(stops.length - 1, 1), step: 1 });
    slider.value = nearest(value);
    slider.setAttribute("aria-valuetext", `${value.toLocaleString("en")} ${words}`.trim());
    slider.style.setProperty("--dk-fill", `${(100 * slider.value) / slider.max}%`);
    Object.assign(box, { min: model.get("low"), max: model.get("high"), step: model.get("whole") ? 1 : "any" });
    if (document.activeElement !== box) box.value = value;
    box.setAttribute("aria-label", stops.length < 2 ? name : `${name}, exact value`);
  };
  const set = (value) => {
    model.set("value", value);
    model.save_changes();
    show();
  };
  slider.addEventListener("input", () => set(model.get("stops")[slider.value]));
  const commit = () => {
    let value = Number(box.value);
    if (box.value.trim() === "" || !Number.isFinite(value)) value = model.get("value");
    value = Math.min(Math.max(value, model.get("low")), model.get("high"));
    value = model.get("whole") ? Math.round(value) : value;
    box.value = value;
    set(value);
  };
  box.addEventListener("change", commit);
  box.addEventListener("keydown", ({ key }) => key === "Enter" && commit());
  show();
  model.on("change", show);
  return () => model.off("change", show);
}

export default { render };
