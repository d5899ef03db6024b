// A page made by the kernel, where everything is escaped, that can ask: a button with data-ask sends what it says.
// Tabs, code to copy and a choice that holds for a whole page (data-group) need no kernel.
const make = (tag, className, text) => Object.assign(document.createElement(tag), { className, textContent: text });

const copy = async (button) => {
  const text = button.closest(".dk-code-box").querySelector("pre:not([hidden])").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.closest(".dk-code-box").querySelector("pre:not([hidden])"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
};

function render({ model, el }) {
  el.classList.add("dk-page");
  const chosen = {};  // group -> what was chosen, for tabs of all pages that come
  const select = (list, name) => {
    const tabs = [...list.querySelectorAll(":scope > [role=tab]")];
    const tab = tabs.find((one) => one.dataset.tab === name) ?? tabs[0];
    for (const one of tabs) {
      const on = one === tab;
      one.setAttribute("aria-selected", on);
      one.tabIndex = on ? 0 : -1;
      const panel = el.querySelector(`#${CSS.escape(one.getAttribute("aria-controls"))}`);
      if (panel) panel.hidden = !on;
    }
    return tab;
  };
  const choose = (list, name) => {
    const { group } = list.dataset;
    if (!group) select(list, name);
    else {
      chosen[group] = name;
      for (const other of el.querySelectorAll(`[data-group="${CSS.escape(group)}"]`)) select(other, name);
      if (group === "part") { model.set("part", name); model.save_changes(); }
    }
  };
  const show = () => {
    el.innerHTML = model.get("value");
    const own = Math.random().toString(36).slice(2);
    for (const list of el.querySelectorAll("[role=tablist]")) {
      for (const tab of list.querySelectorAll(":scope > [role=tab]")) {  // ids of a page that stands twice in a notebook
        const panel = el.querySelector(`#${CSS.escape(tab.getAttribute("aria-controls"))}`);
        [tab.id, panel.id] = [`${own}-${panel.id}-tab`, `${own}-${panel.id}`];
        tab.setAttribute("aria-controls", panel.id);
        panel.setAttribute("aria-labelledby", tab.id);
      }
      const { group } = list.dataset;
      select(list, group === "part" ? model.get("part") : chosen[group]);
    }
    for (const box of el.querySelectorAll(".dk-code-box")) {
      const button = make("button", "dk-copy", "Copy");
      button.type = "button";
      button.ariaLabel = `Copy the code${box.dataset.name ? `: ${box.dataset.name}` : ""}`;
      box.append(button);
    }
  };
  el.addEventListener("click", ({ target }) => {
    const button = target.closest("button, [role=tab]");
    if (!button || !el.contains(button)) return;
    if (button.matches(".dk-copy")) copy(button);
    else if (button.role === "tab") choose(button.parentElement, button.dataset.tab);
    else if (button.dataset.ask) model.send({ ask: button.dataset.ask, of: button.dataset.of });
  });
  el.addEventListener("keydown", (event) => {
    if (event.target.role !== "tab") return;
    const tabs = [...event.target.parentElement.children], at = tabs.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    choose(next.parentElement, next.dataset.tab);
    next.focus();
  });
  const turn = () => el.querySelectorAll('[data-group="part"]').forEach((list) => select(list, model.get("part")));
  const come = (message) => {
    if (message.into_view) requestAnimationFrame(() => {
      el.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      el.querySelector("h3, h4")?.focus?.({ preventScroll: true });
    });
  };
  show();
  model.on("change:value", show);
  model.on("change:part", turn);
  model.on("msg:custom", come);
  return () => {
    model.off("change:value", show);
    model.off("change:part", turn);
    model.off("msg:custom", come);
  };
}

export default { render };
