// The cluster live: every node as a row and as a cell of the heat grid, pods that wait, and namespaces.
// What is shown is in the address, so that a reload keeps it and others can be sent it.
import { showDetails } from "./details.js";
import { badness, heldWords, isTroubled, largestWords, part, readFleet, readPods, readUse } from "./fleet.js";
import { readFleetText } from "./first.js";
import { drawHeat, heatNode } from "./heat.js";
import { bar, element, gib, live, percent, read, showIfChanged, sum } from "./live.js";
import { filterWords, namespacesView, namespacesWith, waitingView, waitingWith } from "./lists.js";
import { VirtualRows } from "./rows.js";

const MIB = 2 ** 20;
const TIB = 2 ** 40;
const VIEWS = ["nodes", "waiting", "namespaces"];
const PODS_EVERY_MS = 30_000;
const USE_AGAIN_MS = 1000; // until all agents were asked
const byName = new Intl.Collator("en", { numeric: true }).compare;
const at = (id) => document.getElementById(id);

/** What is compared and shown in each column of the nodes. Larger values come first where `down` is set. */
const COLUMNS = [
  { key: "name", title: "node", value: (node) => node.name, cell: nameCell },
  { key: "mode", title: "mode", value: (node) => node.mode, cell: (node) => node.mode || "–" },
  { key: "model", title: "model", value: (node) => node.model, cell: (node) => node.model || "–" },
  { key: "gpus", title: "GPUs", value: (node) => node.count, down: true, cell: gpusCell },
  { key: "memory", title: "memory held", value: (node) => partOrNone(node.whole.total ? node.whole : node.memory), down: true, cell: memoryCell },
  { key: "core", title: "compute held", value: (node) => partOrNone(node.core), down: true, cell: coreCell },
  { key: "largest", title: "largest free", value: largestBytes, down: true, cell: largestWords },
  { key: "pods", title: "pods", value: (node) => node.pods, down: true, cell: podsCell },
  { key: "problems", title: "problems", value: (node) => -badness(node), down: true, cell: problemsCell },
];

let fleet = null;
let pods = new Map();
let podsAt = 0;
let use = null;
let useTimer = null;
let state = readAddress();
let shown = [];
let opener = null;

function readAddress() {
  const query = new URLSearchParams(location.search);
  const view = VIEWS.includes(query.get("view")) ? query.get("view") : "nodes";
  const sort = COLUMNS.find((column) => column.key === query.get("sort"))?.key ?? "problems";
  return { view, sort, isTurned: query.get("turned") === "1", filter: query.get("q") ?? "", node: query.get("node") ?? "" };
}

function addressOf({ view, sort, isTurned, filter, node }) {
  const query = new URLSearchParams();
  if (view !== "nodes") query.set("view", view);
  if (sort !== "problems") query.set("sort", sort);
  if (isTurned) query.set("turned", "1");
  if (filter) query.set("q", filter);
  if (node) query.set("node", node);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** Go over to another state. What is opened gets an entry of its own in the history, so that "back" closes it. */
function go(changes) {
  const next = { ...state, ...changes };
  const isOpened = next.node !== state.node || next.view !== state.view;
  state = next;
  history[isOpened ? "pushState" : "replaceState"](null, "", addressOf(state));
  show();
}

function goTo(view) {
  go({ view });
  soon();
}

function nameCell(node) {
  const link = element("a", { href: addressOf({ ...state, node: node.name }), tabIndex: -1 }, node.name);
  return [element("span", { className: `mark ${node.severity || "fine"}`, title: node.severity || "no problem" }), link];
}

function gpusCell(node) {
  if (node.usable === node.count) return String(node.count);
  return [element("span", { className: "bad" }, `${node.usable}`), ` of ${node.count}`];
}

function heldCell(words, amount, isUsable) {
  if (!amount.total) return "–";
  const held = bar(`${words} held`, [[part(amount), isUsable ? "held tone0" : "held off", `${words} held`]]);
  return [element("span", {}, words), held];
}

function memoryCell(node) {
  const words = heldWords(node);
  return node.whole.total ? heldCell(words.whole, node.whole, node.usable) : heldCell(words.memory, node.memory, node.usable);
}

function coreCell(node) {
  return heldCell(heldWords(node).core, node.core, node.usable);
}

function podsCell(node) {
  return node.waiting ? [String(node.pods), element("span", { className: "wait" }, ` (${node.waiting} starting)`)] : String(node.pods);
}

function problemsCell(node) {
  const counts = new Map();
  for (const { severity, reason } of node.problems) {
    const key = `${severity} ${reason}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].map(([key, count]) => {
    const [severity, reason] = key.split(" ");
    const text = `${reason || "problem"}${count > 1 ? ` × ${count}` : ""}`;
    return element("span", { className: `badge ${severity}`, title: severity }, text);
  });
}

/** The held part of an amount, null of nothing. */
const partOrNone = (amount) => (amount.total ? part(amount) : null);

/** For sorting: shares of different units, and whole GPUs above all of them; null of a node that offers no GPUs. */
function largestBytes(node) {
  if (!node.gpus.length) return null;
  const { memory, core, gpus } = node.largest;
  return gpus * 2 ** 60 + memory * (node.unitMib || 1024) * MIB + core;
}

function compare(one, other) {
  const column = COLUMNS.find(({ key }) => key === state.sort);
  const [value, others] = [column.value(one), column.value(other)];
  // What has none of it, for example no compute, is neither the most nor the least.
  if (value === null || others === null) return Number(value === null) - Number(others === null) || byName(one.name, other.name);
  const order = typeof value === "string" ? byName(value, others) : value - others;
  const way = Boolean(column.down) === state.isTurned ? 1 : -1;
  return order * way || byName(one.name, other.name);
}

function filtered() {
  const words = filterWords(state.filter);
  if (!words.length) return fleet.nodes;
  const has = (node, word) => node.words.includes(word) || (pods.get(node.name) ?? []).some((pod) => pod.name.includes(word));
  return fleet.nodes.filter((node) => words.every((word) => has(node, word)));
}

/** What the filter finds in the other tabs, for a tab where it finds nothing. */
function elsewhere() {
  if (!state.filter) return [];
  const words = filterWords(state.filter);
  const counts = {
    nodes: filtered().length,
    waiting: waitingWith(fleet, words).length,
    namespaces: namespacesWith(fleet, use, words).length,
  };
  const nouns = { nodes: "node", waiting: "waiting pod", namespaces: "namespace" };
  const found = VIEWS.filter((view) => view !== state.view && counts[view]).map((view) => {
    const count = counts[view];
    return { view, text: count === 1 ? `1 ${nouns[view]} matches` : `${count} ${nouns[view]}s match` };
  });
  const listed = fleet.waiting.length;
  const isPartSearched = state.view !== "waiting" && !counts.waiting && listed < fleet.waitingCount;
  if (isPartSearched) found.push({ view: "waiting", text: `${listed} of ${fleet.waitingCount} waiting pods were searched` });
  return found;
}

/** Links to these tabs, which keep the filter. */
function linksTo(found) {
  return found.flatMap(({ view, text }) => ["; ", element("a", { href: addressOf({ ...state, view }), "data-view": view }, text)]);
}

/** Bytes in words; a fleet has more than people read well in GiB. */
function large(bytes) {
  return bytes < 10 * TIB ? gib(bytes) : `${Math.round(bytes / TIB)} TiB`;
}

function facts() {
  const { nodes } = fleet;
  const troubled = nodes.filter(isTroubled).length;
  const bytes = (node, units) => units * (node.unitMib || 1024) * MIB;
  const memory = {
    held: sum(nodes.map((node) => bytes(node, node.memory.held))),
    total: sum(nodes.map((node) => bytes(node, node.memory.total))),
  };
  const core = { held: sum(nodes.map((node) => node.core.held)), total: sum(nodes.map((node) => node.core.total)) };
  const whole = { held: sum(nodes.map((node) => node.whole.held)), total: sum(nodes.map((node) => node.whole.total)) };
  const found = {
    nodes: nodes.length,
    "with problems": troubled,
    "usable GPUs": `${sum(nodes.map((node) => node.usable))} of ${sum(nodes.map((node) => node.count))}`,
    "memory held": memory.total ? `${large(memory.held)} of ${large(memory.total)}, ${percent(part(memory))}` : "",
    "compute held": core.total ? percent(part(core)) : "",
    "whole GPUs held": whole.total ? `${whole.held} of ${whole.total}` : "",
    pods: sum(nodes.map((node) => node.pods)),
    "waiting pods": fleet.waitingCount,
  };
  return Object.entries(found)
    .filter(([, value]) => value !== "")
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
}

function heads() {
  return COLUMNS.map(({ key, title, down }) => {
    const isSorted = key === state.sort;
    const isDown = Boolean(down) !== state.isTurned;
    const way = isDown ? "descending" : "ascending";
    const arrow = element("span", { className: "way", "aria-hidden": "true" }, isSorted ? (isDown ? " ↓" : " ↑") : "");
    const button = element("button", { type: "button", title }, element("span", { className: "title" }, title), arrow);
    button.addEventListener("click", () => go({ sort: key, isTurned: isSorted && !state.isTurned }));
    const properties = { scope: "col", className: `column-${key}`, role: "columnheader" };
    if (isSorted) properties["aria-sort"] = way;
    return element("th", properties, button);
  });
}

function rowCells(node) {
  return COLUMNS.map(({ key, title, cell }) =>
    element("td", { className: `column-${key}`, role: "cell", "data-title": title }, cell(node)),
  );
}

const table = new VirtualRows(at("fleet"), { cells: rowCells, open: (node) => open(node.name) });

function open(name) {
  opener = name;
  go({ node: name });
}

function close() {
  if (!state.node) return;
  const name = opener ?? state.node;
  go({ node: "" });
  table.focus(name);
}

function show() {
  if (!fleet) return;
  at("controls").hidden = false;
  for (const view of VIEWS) {
    const isShown = view === state.view;
    at(view).hidden = !isShown;
    at(`tab-${view}`).setAttribute("aria-selected", String(isShown));
    at(`tab-${view}`).tabIndex = isShown ? 0 : -1;
  }
  // A space at the end stays in the box: another word may follow.
  if (at("filter").value.trim() !== state.filter) at("filter").value = state.filter;
  at("facts").replaceChildren(...facts());
  at("tab-waiting").textContent = `Waiting pods (${fleet.waitingCount})`;
  if (state.view === "nodes") showNodes();
  if (state.view === "waiting") showWaiting();
  if (state.view === "namespaces") showNamespaces();
  showNode();
}

function showWaiting() {
  const found = elsewhere();
  showIfChanged(at("waiting"), [fleet.waiting, fleet.waitingCount, state.filter, found], () => waitingView(fleet, state.filter, linksTo(found)));
}

function showNamespaces() {
  const found = elsewhere();
  const uses = use ? { ...use, namespaces: [...use.namespaces.values()] } : null;
  showIfChanged(at("namespaces"), [fleet.namespaces, fleet.agents, uses, state.filter, found], () => namespacesView(fleet, use, state.filter, linksTo(found)));
}

function showNodes() {
  shown = filtered().slice().sort(compare);
  table.show(heads(), shown, state.node);
  drawHeat(at("heat"), shown, state.node);
  const all = fleet.nodes.length;
  const isNone = all > 0 && shown.length === 0;
  // Before the pods were read, the filter does not know those of the nodes.
  const isRead = podsAt > 0;
  const found = isNone ? elsewhere() : [];
  const words = isNone ? (isRead ? "no such node" : "no such node so far, reading the pods …") : shown.length === all ? "" : `${shown.length} of ${all} nodes`;
  showIfChanged(at("count"), [words, state.filter, found], () => [words, ...linksTo(found)]);
}

function showNode() {
  const node = fleet.nodes.find(({ name }) => name === state.node);
  const panel = at("details");
  const wasHidden = panel.hidden;
  panel.hidden = !state.node;
  document.body.classList.toggle("split", Boolean(state.node));
  if (!state.node) return;
  showDetails(panel, { name: state.node, node, pods: pods.get(state.node), problemsUrl: fleet.problemsUrl, agents: fleet.agents, close });
  if (wasHidden) panel.focus({ preventScroll: true });
}

/** Pods are many, so they are read only if something that is shown needs them, and not at each turn. */
async function readPodsIfNeeded(isFresh) {
  const isNeeded = Boolean(state.filter || state.node);
  const isOld = performance.now() - podsAt > PODS_EVERY_MS;
  const isCheap = fleet && sum(fleet.nodes.map((node) => node.pods)) < 2000;
  if (!isNeeded || !(podsAt === 0 || isOld || (isFresh && isCheap))) return;
  pods = readPods(await read("pods"));
  podsAt = performance.now();
  show();
}

/** Agents are asked only while a reader looks at what namespaces use. */
async function readUseIfShown() {
  clearTimeout(useTimer);
  if (state.view !== "namespaces" || document.hidden) return;
  use = readUse(await read("use"));
  show();
  const isAll = !use.isOn || use.asked === use.nodes;
  if (!isAll) useTimer = setTimeout(soon, USE_AGAIN_MS);
}

async function turn() {
  fleet = readFleet(await readFleetText());
  show();
  // For who wants to know how long it takes.
  if (!performance.getEntriesByName("shown").length) performance.mark("shown");
  await readPodsIfNeeded(true);
  await readUseIfShown();
}

/** Read now what a change of the view needs. If it fails, the next turn says what is wrong. */
function soon() {
  readPodsIfNeeded(false).catch(() => {});
  readUseIfShown().catch(() => {});
}

at("filter").addEventListener("input", () => {
  go({ filter: at("filter").value.trim() });
  soon();
});
for (const view of VIEWS) at(`tab-${view}`).addEventListener("click", () => goTo(view));
at("views").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = VIEWS[(VIEWS.indexOf(state.view) + step + VIEWS.length) % VIEWS.length];
  goTo(next);
  at(`tab-${next}`).focus();
});
addEventListener("popstate", () => {
  const before = state.node;
  state = readAddress();
  show();
  soon();
  if (before && !state.node) table.focus(before);
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.node) close();
});
heatNode(at("heat"), at("pointed"), () => shown, (node) => open(node.name));
addEventListener("resize", () => fleet && state.view === "nodes" && showNodes());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => fleet && show());
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-filter], a[data-view]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.dataset.view) {
    goTo(link.dataset.view);
    at(`tab-${link.dataset.view}`).focus();
    return;
  }
  go({ view: "nodes", node: "", filter: link.dataset.filter });
  soon();
});
at("live").textContent = "reading …";
live(turn, 3000);
