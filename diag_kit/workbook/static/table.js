// A folded table over many rows. Only a page of them is in the document; sorting and filtering ask no kernel.
const PAGE = 50;

const make = (tag, className, ...children) => {
  const el = document.createElement(tag);
  el.className = className;
  el.append(...children);
  return el;
};
const textOf = (cell) => (Array.isArray(cell) ? cell[0] : cell);
const keyOf = (cell) => (Array.isArray(cell) ? cell[1] : cell);
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));

function render({ model, el }) {
  el.classList.add("dk-table");
  const id = `dk-table-${Math.random().toString(36).slice(2)}`;
  const lines = make("section", "dk-lines");
  lines.setAttribute("aria-live", "polite");
  lines.setAttribute("aria-label", "Lines of the log");
  const title = make("summary", ""), tools = make("div", "dk-table-tools");
  const find = Object.assign(make("input", "dk-note"), { id, type: "search", autocomplete: "off" });
  const label = Object.assign(make("label", "dk-small"), { htmlFor: id });
  const count = make("span", "dk-small");
  count.setAttribute("role", "status");
  tools.append(label, find, count);
  const head = make("tr", ""), body = make("tbody", "");
  const more = Object.assign(make("button", "jupyter-button widget-button dk-more-rows"), { type: "button" });
  const table = make("table", "", make("thead", "", head), body);
  const fold = make("details", "", title, tools, make("div", "dk-scroll", table), more);
  el.append(lines, fold);

  let data = JSON.parse(model.get("body")), sorted = -1, down = false, shown = PAGE;
  const choose = (index) => {
    model.set("chosen", index);
    model.save_changes();
    lines.scrollIntoView({ block: "nearest" });
  };
  const wanted = () => {
    const rows = data.rows, words = find.value.trim().toLowerCase();
    const order = rows.map((_, i) => i).filter((i) => !words || rows[i].some((cell) => String(textOf(cell)).toLowerCase().includes(words)));
    if (sorted >= 0) order.sort((a, b) => (down ? -1 : 1) * compare(keyOf(rows[a][sorted]), keyOf(rows[b][sorted])) || a - b);
    return order;
  };
  const row = (index) => {
    const cells = data.rows[index], columns = model.get("columns"), tone = data.tones[index];
    const tr = make("tr", "", ...cells.map((cell, i) => make("td", `${columns[i].number ? "dk-number" : ""} ${i === 1 && tone ? tone : ""}`.trim(), String(textOf(cell)))));
    if (!data.details.length) return tr;
    const button = Object.assign(make("button", "dk-link", tr.lastChild.textContent), { type: "button" });
    button.title = "Show these lines";
    tr.lastChild.replaceChildren(button);
    tr.classList.add("dk-choosable");
    tr.dataset.index = index;
    tr.addEventListener("click", () => choose(index));
    return tr;
  };
  const press = () => {
    for (const tr of body.querySelectorAll(".dk-choosable")) {
      const chosen = Number(tr.dataset.index) === model.get("chosen");
      tr.classList.toggle("dk-chosen", chosen);
      tr.querySelector("button").setAttribute("aria-pressed", chosen);
    }
  };
  const fill = () => {
    const order = wanted(), all = data.rows.length;
    body.replaceChildren(...order.slice(0, shown).map(row));
    press();
    const left = order.length - shown;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(PAGE, left).toLocaleString("en")} more of ${left.toLocaleString("en")}`;
    const seen = Math.min(shown, order.length).toLocaleString("en");
    const among = order.length === all ? "" : ` found, of ${all.toLocaleString("en")}`;
    count.textContent = order.length ? `${seen} of ${order.length.toLocaleString("en")}${among}` : "None has this text.";
    tools.hidden = !model.get("find") || all < 8;
  };
  const point = () => {
    const [heading, near] = data.details[model.get("chosen")] ?? [];
    lines.hidden = heading === undefined;
    if (heading === undefined) return;
    const marked = near.map(([text, here]) => make(here ? "mark" : "span", "", `${text}\n`));
    lines.replaceChildren(make("p", "dk-small", heading), make("pre", "dk-around", ...marked));
  };
  const build = () => {
    data = JSON.parse(model.get("body"));
    title.textContent = model.get("title");
    label.textContent = model.get("find");
    [sorted, down, shown, find.value] = [-1, false, PAGE, ""];
    head.replaceChildren(...model.get("columns").map(({ label: text, number }, i) => {
      const button = Object.assign(make("button", "dk-sort", text), { type: "button" });
      const th = make("th", number ? "dk-number" : "", button);
      th.scope = "col";
      button.addEventListener("click", () => {
        [down, sorted] = [sorted === i && !down, i];
        for (const other of head.children) other.removeAttribute("aria-sort");
        th.setAttribute("aria-sort", down ? "descending" : "ascending");
        fill();
      });
      return th;
    }));
    fill();
    point();
  };
  find.addEventListener("input", () => { shown = PAGE; fill(); });
  more.addEventListener("click", () => {
    const before = body.children.length;
    shown += PAGE;
    fill();
    body.children[before]?.querySelector("button")?.focus();
  });
  const events = "change:body change:title";
  const rebuild = () => { clearTimeout(rebuild.waits); rebuild.waits = setTimeout(build); };
  const rechoose = () => { press(); point(); };
  model.on(events, rebuild);
  model.on("change:chosen", rechoose);
  build();
  return () => {
    model.off(events, rebuild);
    model.off("change:chosen", rechoose);
  };
}

export default { render };
