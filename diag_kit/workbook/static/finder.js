// A search box over a list. The kernel finds; arrows walk the list, Enter opens. Text is set, never markup.
const make = (tag, className, ...children) => {
  const el = document.createElement(tag);
  el.className = className;
  el.append(...children);
  return el;
};

function render({ model, el }) {
  const id = `dk-finder-${Math.random().toString(36).slice(2)}`;
  el.classList.add("dk-finder");
  const label = Object.assign(make("label", "", model.get("label")), { htmlFor: id });
  const box = Object.assign(make("input", "dk-note"), { id, type: "search", autocomplete: "off", placeholder: model.get("hint"), value: model.get("query") });
  const status = make("p", "dk-small");
  status.setAttribute("role", "status");
  const list = make("div", "dk-finder-list");
  el.append(label, box, status, list);

  const buttons = () => [...list.querySelectorAll("button")];
  const press = () => {
    for (const one of buttons()) {
      const on = one.dataset.id === model.get("chosen");
      one.toggleAttribute("aria-current", on);
      one.classList.toggle("dk-chosen-row", on);
    }
  };
  const choose = (name) => {
    model.set("chosen", name);
    model.save_changes();
    model.send({ chosen: name });
  };
  const fill = () => {
    const groups = model.get("rows").map(({ group, items }) => {
      const rows = items.map((item) => {
        const row = Object.assign(make("button", "", make("b", "", item.title)), { type: "button" });
        if (item.line) row.append(make("small", "", item.line));
        row.dataset.id = item.id;
        return make("li", "", row);
      });
      const ul = make("ul", "", ...rows);
      if (!group) return [ul];
      ul.setAttribute("aria-label", group);
      return [make("h4", "", group), ul];
    });
    const at = document.activeElement?.dataset?.id;
    list.replaceChildren(...groups.flat());
    if (at && !list.contains(document.activeElement)) buttons().find((one) => one.dataset.id === at)?.focus();
    press();
  };
  const say = () => { status.textContent = model.get("status"); };
  box.addEventListener("input", () => { model.set("query", box.value); model.save_changes(); });
  const requery = () => { if (document.activeElement !== box) box.value = model.get("query"); };
  el.addEventListener("keydown", (event) => {
    const all = buttons(), at = all.indexOf(document.activeElement);
    if (event.key === "Enter" && event.target === box && all.length) choose(all[0].dataset.id);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to === undefined || !all.length) return;
    event.preventDefault();
    (to < 0 ? box : all[Math.min(to, all.length - 1)]).focus();
  });
  list.addEventListener("click", ({ target }) => {
    const row = target.closest("button");
    if (row) choose(row.dataset.id);
  });
  fill();
  say();
  model.on("change:rows", fill);
  model.on("change:status", say);
  model.on("change:chosen", press);
  model.on("change:query", requery);
  return () => {
    model.off("change:rows", fill);
    model.off("change:status", say);
    model.off("change:chosen", press);
    model.off("change:query", requery);
  };
}

export default { render };
