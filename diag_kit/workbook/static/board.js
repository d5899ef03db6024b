// A checklist. Groups come from the evidence and the entries, marks from people. Native radios and text boxes.
const SIGN = { confirmed: "✓", refuted: "✗", "not-applicable": "–", todo: "" };
const DONE = { confirmed: "The evidence confirms it", refuted: "The evidence speaks against it" };

const make = (tag, className, ...children) => {
  const el = document.createElement(tag);
  el.className = className;
  el.append(...children);
  return el;
};

// A text box commits when it is left and, in a notebook too, on Enter.
const onCommit = (box, commit) => {
  box.addEventListener("change", commit);
  box.addEventListener("keydown", ({ key }) => key === "Enter" && commit());
};

function row(model, item, name) {
  const sign = make("span", "dk-sign");
  sign.setAttribute("aria-hidden", "true");
  const el = make("fieldset", "dk-item", make("legend", "dk-item-action", sign, item.action));
  const facts = [item.expect && `Expect: ${item.expect}`, item.how && `How: ${item.how}`, item.cost && `Cost: ${item.cost}`];
  if (item.kind === "check") facts.push(item.disturbs ? "Disturbs the run." : "Leaves the run alone.");
  if (facts.some(Boolean)) el.append(make("p", "dk-item-facts", facts.filter(Boolean).join(" · ")));
  if (item.evidence) {
    const said = make("p", "dk-item-facts", DONE[item.evidence.state] ?? item.evidence.state, item.evidence.note ? `, ${item.evidence.note}` : "");
    if (item.where) said.append(": ", make("code", "", item.where), " ", item.line);
    el.append(said);
  }
  const radios = {}, marks = make("div", "dk-item-marks");
  for (const [state, word] of model.get("states")) {
    radios[state] = Object.assign(document.createElement("input"), { type: "radio", name, value: state });
    radios[state].addEventListener("change", () => mark());
    marks.append(make("label", "dk-mark", radios[state], word));
  }
  const note = Object.assign(make("input", "dk-note"), { type: "text", placeholder: "Note: what you saw" });
  note.setAttribute("aria-label", `Note on: ${item.action}`);
  onCommit(note, () => mark());
  const by = make("small", "");
  marks.append(note, by);
  // What the evidence settles stays folded: it can be overruled, but need not be walked.
  el.append(item.evidence ? make("details", "dk-overrule", make("summary", "dk-small", "Overrule"), marks) : marks);

  const mine = () => model.get("marks")[item.id] ?? { state: "todo", note: "", by: "" };
  const mark = () => model.send({ item: item.id, state: marks.querySelector("input:checked").value, note: note.value });
  const show = () => {
    const now = mine();
    el.dataset.state = now.state;
    sign.textContent = SIGN[now.state] ?? "";
    if (radios[now.state]) radios[now.state].checked = true;
    if (document.activeElement !== note) note.value = item.evidence?.note === now.note ? "" : now.note;
    by.textContent = now.by && now.by !== "evidence" ? `by ${now.by}` : "";
  };
  return { el, show };
}

function render({ model, el }) {
  const id = `dk-board-${Math.random().toString(36).slice(2)}`;
  el.classList.add("dk-board");
  const label = Object.assign(make("label", "", "Your name"), { htmlFor: id });
  const who = Object.assign(make("input", "dk-note"), { id, type: "text", autocomplete: "off", placeholder: "goes with each mark" });
  onCommit(who, () => { model.set("who", who.value); model.save_changes(); });
  const status = make("p", "dk-status");
  status.setAttribute("role", "status");
  const list = make("div", "dk-board-groups");
  el.append(make("div", "dk-board-head", label, who, status), list);

  let rows = [];
  const show = () => {
    rows.forEach((one) => one.show());
    if (document.activeElement !== who) who.value = model.get("who");
    if (status.textContent !== model.get("status")) status.textContent = model.get("status");
  };
  const build = () => {
    rows = [];
    const lead = model.get("lead");
    const boxes = model.get("groups").map((group, g) => {
      const items = group.items.map((item, i) => row(model, item, `${id}-${g}-${i}`));
      rows.push(...items);
      const title = make("summary", "", make("b", "", group.title));
      if (group.verdict) title.prepend(make("span", `dk-badge dk-${group.verdict}`, group.verdict));
      const box = make("details", "dk-finding dk-board-group", title, make("div", "dk-items", ...items.map((one) => one.el)));
      box.open = g === 0 || !(lead || group.verdict);
      return box;
    });
    // What decides first stands alone; the rest is one fold, its best group open.
    const rest = lead ? boxes.splice(1) : [];
    if (rest.length) {
      rest[0].open = true;
      boxes.push(make("details", "dk-board-rest", make("summary", "", make("b", "", `The other ${rows.length - lead} items`)), ...rest));
    }
    list.replaceChildren(...boxes);
    show();
  };
  build();
  model.on("change:groups", build);
  model.on("change:marks change:status change:who", show);
  return () => {
    model.off("change:groups", build);
    model.off("change:marks change:status change:who", show);
  };
}

export default { render };
