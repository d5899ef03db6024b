// A link made from bytes: no second copy on a server, works wherever the page is open.
function render({ model, el }) {
  const link = document.createElement("a");
  link.className = "dk-download";
  el.appendChild(link);
  const show = () => {
    URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob([model.get("content")], { type: model.get("mime") }));
    link.download = link.textContent = model.get("name");
    link.title = `Download ${model.get("name")}`;
  };
  show();
  model.on("change", show);
  return () => { model.off("change", show); URL.revokeObjectURL(link.href); };
}

export default { render };
