// A select under a label that says where its value comes from.
function render({ model, el }) {
  const id = `dk-choice-${Math.random().toString(36).slice(2)}`;
  el.classList.add("dk-control");
  el.innerHTML = `<div class="dk-control-head"><label for="${id}"></label><span class="dk-origin" id="${id}-from"></span></div>
    <select id="${id}" aria-describedby="${id}-from"></select>`;
  const label = el.querySelector("label"), origin = el.querySelector(".dk-origin"), select = el.querySelector("select");
  const show = () => {
    label.textContent = model.get("label");
    origin.textContent = `\u200e${model.get("origin")}\u200e`;  // cut in front, yet read from the left
    origin.title = model.get("origin");
    origin.classList.toggle("dk-assumed", model.get("assumed"));
    select.replaceChildren(...model.get("options").map(([value, text]) => new Option(text, value)));
    select.value = model.get("value");
  };
  select.addEventListener("change", () => {
    model.set("value", select.value);
    model.save_changes();
  });
  show();
  model.on("change", show);
  return () => model.off("change", show);
}

export default { render };
