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

const DEFAULT_AGENTS = { namespace: "kube-system", port: 9445 };

/** `kubectl inspect cgpu`, which has to be told where agents are if that is not its default. */
export function inspectCommand(words, { namespace, port }) {
  const where = [];
  if (namespace !== DEFAULT_AGENTS.namespace) where.push(`--agent-namespace ${namespace}`);
  if (port !== DEFAULT_AGENTS.port) where.push(`--agent-port ${port}`);
  return ["kubectl inspect cgpu", words, ...where].join(" ");
}

/** A table whose cells name their column, which a phone shows before them. */
export function table(heads, rows, kind = "long") {
  // A phone leaves out what there is nothing of, because each cell has a line of its own there.
  const kindOf = (cell) => (cell === "–" ? "nothing" : "");
  const cells = (row) => row.map((cell, place) => element("td", { "data-title": heads[place], role: "cell", className: kindOf(cell) }, cell));
  return element(
    "table",
    { className: `list ${kind}`, role: "table" },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, heads.map((text) => element("th", { scope: "col", role: "columnheader" }, text)))),
    element("tbody", { role: "rowgroup" }, rows.map((row) => element("tr", { role: "row" }, cells(row)))),
  );
}
