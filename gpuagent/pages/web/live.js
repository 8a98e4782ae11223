// What the pages of the agent and of the scheduler share: elements, amounts, and reading again while the page is visible.
// Names of pods and nodes are text that others wrote, so all text goes through textContent.

/** An element with these properties and children; a child that is no element is text. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { style = {}, ...others } = properties;
  for (const [name, value] of Object.entries(others)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  Object.assign(made.style, style);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** A bar: parts are [from 0 to 1, class, words]. */
export function bar(label, parts) {
  const segments = parts.map(([part, kind, words]) =>
    element("i", { className: kind, title: words, style: { width: `${Math.min(1, Math.max(0, part)) * 100}%` } }),
  );
  return element("div", { className: "bar", role: "img", "aria-label": label, title: label }, segments);
}

/** The rows of a table, the first one its heads. */
export function rows([heads, ...others]) {
  return [
    element("thead", {}, element("tr", {}, heads.map((text) => element("th", {}, text)))),
    element("tbody", {}, others.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell))))),
  ];
}

const LONG = 280; // characters; a text that is a little longer than its start is shown whole
const START = 200;
const opened = new Set();

/** A text that others wrote. Of a long one the start is shown, and all of it after a click or Enter. */
export function longText(text) {
  if (text.length <= LONG) return text;
  const start = element("span", { className: "start" }, `${text.slice(0, START)} … `);
  const summary = element("summary", {}, start, element("span", { className: "toggle" }));
  const details = element("details", { className: "long-text", open: opened.has(text) }, summary, element("p", {}, text));
  details.addEventListener("toggle", () => (details.open ? opened.add(text) : opened.delete(text)));
  return details;
}

/** Replace what an element has only if what it shows has changed, so that focus and selected text stay. */
export function showIfChanged(parent, shown, make) {
  const key = JSON.stringify(shown);
  if (parent.shownKey === key) return;
  parent.shownKey = key;
  parent.replaceChildren(...make());
}

export const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
export const percent = (part) => `${Math.round(part * 100)} %`;
export const gib = (bytes) => `${Number((bytes / 2 ** 30).toFixed(1))} GiB`;

/**
 * Call `turn` now and then while the page is visible. It returns when it has shown all; what it throws is shown.
 * The pause is ten times what a turn took, so that a large cluster is read less often.
 */
export function live(turn, leastPauseMs) {
  const status = document.getElementById("live");
  let shownAt = null;
  let timer = null;
  let busy = false;
  async function again() {
    clearTimeout(timer);
    if (document.hidden || busy) return;
    busy = true;
    const began = performance.now();
    try {
      await turn();
      shownAt = new Date();
      // A screen reader should not read the time out at each turn.
      status.setAttribute("aria-live", "off");
      status.textContent = `live, ${shownAt.toLocaleTimeString()}`;
      document.body.classList.remove("stale");
    } catch (error) {
      const since = shownAt ? `; this is what it said at ${shownAt.toLocaleTimeString()}` : "";
      status.setAttribute("aria-live", "polite");
      status.textContent = `not live: ${error.message}${since}`;
      document.body.classList.add("stale");
    }
    busy = false;
    timer = setTimeout(again, Math.max(leastPauseMs, 10 * (performance.now() - began)));
  }
  document.addEventListener("visibilitychange", again);
  again();
}

/** The text of another page of this server. */
export async function read(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(20_000) });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${(await answer.text()).trim()}`);
  return answer.text();
}
