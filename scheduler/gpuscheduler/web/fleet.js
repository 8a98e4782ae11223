// What the pages /fleet and /pods say, as objects with names. The arrays are described in pages/fleet_page.py.
import { gib, percent, sum } from "./live.js";

const SEVERITIES = ["blocking", "warning", "info"];
const MIB = 2 ** 20;

/** The cluster, of the text of /fleet. */
export function readFleet(text) {
  const page = JSON.parse(text);
  return {
    problemsUrl: page.problemsUrl,
    agents: { namespace: page.agents[0], port: page.agents[1] },
    nodes: page.nodes.map(readNode),
    namespaces: page.namespaces.map(([name, pods, mib, core, whole, waiting]) => ({ name, pods, mib, core, whole, waiting })),
    waiting: page.waiting.map(([pod, memory, core, gpus, why]) => ({ pod, memory, core, gpus, why })),
    waitingCount: page.waitingCount,
    waitingUnitMib: page.waitingUnitMib,
  };
}

function readNode(row) {
  const [name, mode, model, unitMib, usable, count, pods, waiting, largest, problems, gpus] = row;
  const node = { name, mode, model, unitMib, usable, count, pods, waiting };
  node.problems = problems.map(([severity, reason, message, isDocumented]) => ({ severity, reason, message, isDocumented: Boolean(isDocumented) }));
  node.severity = node.problems.length ? node.problems[0].severity : "";
  node.gpus = gpus.map(readGpu);
  const shared = node.gpus.filter((gpu) => !gpu.whole);
  const whole = node.gpus.filter((gpu) => gpu.whole);
  node.memory = amount(shared, "memory", "heldMemory");
  node.core = amount(shared, "core", "heldCore");
  node.whole = { held: whole.filter((gpu) => gpu.pods).length, total: whole.length };
  node.largest = { memory: largest[0], core: largest[1], gpus: largest[2] };
  node.held = Math.max(part(node.memory), part(node.core), part(node.whole));
  node.words = [name, mode, model, node.problems.map((one) => `${one.severity} ${one.reason} ${one.message}`).join(" ")].join(" ").toLowerCase();
  return node;
}

function readGpu([minor, usable, whole, memory, heldMemory, core, heldCore, pods]) {
  const gpu = { minor, usable: Boolean(usable), whole: Boolean(whole), memory, heldMemory, core, heldCore, pods };
  // Without compute left, a GPU is not free, however much memory it has.
  const memoryPart = memory ? heldMemory / memory : 0;
  const corePart = core ? heldCore / core : 0;
  gpu.held = whole ? Number(pods > 0) : Math.max(memoryPart, corePart);
  return gpu;
}

function amount(gpus, total, held) {
  return { held: sum(gpus.map((gpu) => gpu[held])), total: sum(gpus.map((gpu) => gpu[total])) };
}

/** The held part of an amount, 0 of nothing. */
export const part = ({ held, total }) => (total ? held / total : 0);

/** How bad the worst problem of a node is, for sorting: 0 is the worst. */
export function badness(node) {
  const place = SEVERITIES.indexOf(node.severity);
  return place < 0 ? SEVERITIES.length : place;
}

/** Whether a node has a problem that is not for information only. */
export const isTroubled = (node) => node.severity === "blocking" || node.severity === "warning";

/** Units of memory in words. Where the size of a unit is not known, they are units. */
export function memoryWords(units, unitMib) {
  return unitMib ? gib(units * unitMib * MIB) : `${units} units`;
}

/** What is held of an amount, in words; empty if the node has none of it. */
export function heldWords(node) {
  const words = {};
  const { memory, core, whole } = node;
  words.memory = memory.total ? `${plain(memory.held, node.unitMib)} of ${memoryWords(memory.total, node.unitMib)}` : "";
  words.core = core.total ? percent(part(core)) : "";
  words.whole = whole.total ? `${whole.held} of ${whole.total} GPUs` : "";
  return words;
}

/** A number of GiB without its unit, which the total beside it has. */
function plain(units, unitMib) {
  return unitMib ? gib(units * unitMib * MIB).replace(" GiB", "") : String(units);
}

/** The largest share that is free, in words. */
export function largestWords(node) {
  const { memory, core, gpus } = node.largest;
  if (gpus) return gpus === 1 ? "1 GPU" : `${gpus} GPUs`;
  const parts = [];
  if (memory) parts.push(memoryWords(memory, node.unitMib));
  if (core) parts.push(`${core} %`);
  return parts.join(", ") || (node.gpus.length ? "none" : "–");
}

/** What a pod has or asks for, in words. */
export function amountWords({ memory, core, whole }, unitMib) {
  const parts = [];
  if (whole) parts.push(whole === 1 ? "1 GPU" : `${whole} GPUs`);
  if (memory > 0) parts.push(memoryWords(memory, unitMib));
  if (core > 0) parts.push(`${core} % of compute`);
  return parts.join(", ") || "–";
}

/** A sum over pods: `value` is null if nothing is known, and the least if not all is. */
const knownSum = ([value, isComplete]) => ({ value, isComplete });

/** What namespaces use by their names, and how far agents have been asked, of the text of /use. */
export function readUse(text) {
  const page = JSON.parse(text);
  const unknown = page.unknown.map(([why, count, node]) => ({ why, count, node }));
  const namespaces = new Map();
  for (const [name, pods, unknownPods, ...sums] of page.namespaces) {
    const [idle, held, used, peak, unused] = sums.map(knownSum);
    namespaces.set(name, { name, pods, unknownPods, idle, held, used, peak, unused });
  }
  return { isOn: page.isOn, asked: page.asked, nodes: page.nodes, unknown, namespaces };
}

/** The pods of each node by its name, of the text of /pods. */
export function readPods(text) {
  const pods = new Map();
  for (const [node, rows] of Object.entries(JSON.parse(text))) {
    pods.set(node, rows.map(([name, reserved, memory, core, whole, gpus]) => ({ name, reserved: Boolean(reserved), memory, core, whole, gpus })));
  }
  return pods;
}
