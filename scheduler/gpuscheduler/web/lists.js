// Pods that wait, and namespaces with what they hold and use.
import { amountWords } from "./fleet.js";
import { element, gib, longText, percent } from "./live.js";
import { copyable, inspectCommand, table } from "./parts.js";

const MOST = 300;
const MIB = 2 ** 20;

/** The words of the filter, all of which must be there. */
export const filterWords = (filter) => filter.toLowerCase().split(/\s+/).filter(Boolean);

/** The listed pods that wait and have these words in their name or reason. */
export function waitingWith(fleet, words) {
  return fleet.waiting.filter(({ pod, why }) => words.every((word) => `${pod} ${why}`.toLowerCase().includes(word)));
}

/** The namespaces that have these words in their name. */
export function namespacesWith(fleet, use, words) {
  return merged(fleet.namespaces, use).filter(({ name }) => words.every((word) => name.includes(word)));
}

/** The pods that wait, each with the reason. `elsewhere` is shown if there are none: what the filter finds instead. */
export function waitingView(fleet, filter, elsewhere) {
  const rows = waitingWith(fleet, filterWords(filter)).map(({ pod, memory, core, gpus, why }) => {
    const [namespace, name] = pod.split("/");
    return [pod, amountWords({ memory, core, whole: gpus }, fleet.waitingUnitMib), longText(why || "not tried yet"), copyable(`kubectl inspect cgpu -n ${namespace} --why ${name}`)];
  });
  const all = fleet.waitingCount;
  const more = all > fleet.waiting.length ? `${fleet.waiting.length} of ${all} pods that wait are listed. usage has all of them.` : "";
  const note = element("p", { className: "quiet" }, more);
  if (!rows.length) return [element("p", { className: "quiet" }, all ? "no such pod" : "No pod waits for GPUs.", elsewhere), note];
  return [table(["pod", "asks for", "why it waits", "more about it"], rows), note];
}

/** What the pods of each namespace hold, and what the agents say of it: the most unused memory first. */
export function namespacesView(fleet, use, filter, elsewhere) {
  const found = namespacesWith(fleet, use, filterWords(filter));
  found.sort((one, other) => unusedBytes(other) - unusedBytes(one) || other.mib - one.mib || other.whole - one.whole || other.core - one.core);
  const rows = found.slice(0, MOST).map(({ name, pods, mib, core, whole, waiting, use: of }) => [
    element("a", { href: `?q=${encodeURIComponent(`${name}/`)}`, "data-filter": `${name}/` }, name),
    String(pods),
    mib ? gib(mib * MIB) : "–",
    core ? `${core} %` : "–",
    whole ? String(whole) : "–",
    ...useCells(of),
    waiting ? String(waiting) : "–",
  ]);
  if (!rows.length) return [element("p", { className: "quiet" }, "no such namespace", elsewhere)];
  const heads = ["namespace", "pods", "memory held", "compute held", "whole GPUs held", "used (p95)", "peak", "unused", "idle for 1 h", "waiting pods"];
  const more = found.length > rows.length ? `${rows.length} of ${found.length} namespaces are listed. A word in the filter finds the others.` : "";
  return [table(heads, rows, "numbers"), element("p", { className: "quiet" }, more), ...aboutUse(fleet, use)];
}

/** Also namespaces of which only agents know that they hold something: pods with claims. */
function merged(namespaces, use) {
  const byName = new Map(namespaces.map((namespace) => [namespace.name, namespace]));
  for (const { name, pods } of use?.namespaces.values() ?? []) {
    if (!byName.has(name)) byName.set(name, { name, pods, mib: 0, core: 0, whole: 0, waiting: 0 });
  }
  return [...byName.values()].map((namespace) => ({ ...namespace, use: use?.namespaces.get(namespace.name) }));
}

const unusedBytes = (namespace) => namespace.use?.unused.value ?? 0;

/** A sum in words; "≥" before one of which a part is not known. */
function sumWords({ value, isComplete }, words) {
  if (value === null) return "–";
  return isComplete ? words(value) : `≥ ${words(value)}`;
}

/** Used memory, peak, and what is unused, of the pods of which agents know it; and how many pods are idle. */
function useCells(use) {
  if (!use) return ["–", "–", "–", "–"];
  const { pods, unknownPods, idle, held, used, peak, unused } = use;
  const idleWords = sumWords(idle, (count) => (count === 1 ? "1 pod" : `${count} pods`));
  const idleCell = idle.value ? element("span", { className: "wait" }, idleWords) : "–";
  if (used.value === null) return [element("span", { className: "quiet" }, "not known"), "–", "–", idleCell];
  const lacks = unknownPods ? element("span", { className: "quiet" }, ` (${unknownPods} of ${pods} pods not known)`) : "";
  // Of a part of the pods, the share would be of other memory than the amount.
  const isWhole = held.value && held.isComplete && unused.isComplete;
  const share = isWhole ? element("span", { className: "quiet" }, ` ${percent(unused.value / held.value)}`) : "";
  const usedWords = `${sumWords(used, gib).replace(" GiB", "")} of ${sumWords(held, gib)}`;
  return [[usedWords, lacks], sumWords(peak, gib), [sumWords(unused, gib), share], idleCell];
}

function aboutUse(fleet, use) {
  const about = element("p", { className: "quiet" }, "Held and reserved. Compute is in percent of one GPU, so 250 % are two and a half. ");
  const pods = element("p", { className: "quiet" }, "The same of each pod: ", copyable(inspectCommand("--waste", fleet.agents)));
  if (use && !use.isOn) return [about, element("p", { className: "quiet" }, "gpuscheduler asks no agents what is used, because its setting agent-namespace is off."), pods];
  const isAll = Boolean(use) && use.asked === use.nodes;
  const how = "Used is what pods stayed below for 95 % of their time, of all memory that they hold, whole GPUs included. The agents of the nodes are asked at most once a minute. ";
  const far = Number.isFinite(use?.nodes) ? `${use.asked} of ${use.nodes} nodes asked.` : "Agents are being asked …";
  const missing = (use?.unknown ?? []).map(({ why, count, node }) => {
    const nodes = count === 1 ? `node ${node}` : `${count} nodes, for example ${node}`;
    return element("p", { className: "wait" }, `Not known of ${nodes}: ${why}.`);
  });
  return [about, element("p", { className: "quiet" }, how, isAll ? "" : far), ...missing, pods];
}
