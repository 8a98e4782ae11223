// Commands to copy, and tables.
import { element } from "./live.js";

/** A command that a click copies. */
export function copyable(command) {
  const button = element("button", { type: "button", className: "copy", title: "copy", "aria-label": `copy: ${command}` }, element("code", {}, command));
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(command);
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1500);
    } catch {
      // Without https there is no clipboard: select it, so that Ctrl-C copies it.
      getSelection().selectAllChildren(button.firstElementChild);
    }
  });
  return button;
}

/** A table whose cells name their column, which a phone shows before them. */
export function table(heads, rows, kind = "long") {
  const cells = (row) => row.map((cell, place) => element("td", { "data-title": heads[place], role: "cell" }, cell));
  return element(
    "table",
    { className: `list ${kind}`, role: "table" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads.map((text) => element("th", { scope: "col", role: "columnheader" }, text)))),
    element("tbody", { role: "rowgroup" }, rows.map((row) => element("tr", { role: "row" }, cells(row)))),
  );
}
