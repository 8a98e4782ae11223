// The cluster live: what is held and reserved on each GPU, and which pods wait. All of it is in usage.
import { bar, element, gib, live, percent, read, rows, sum } from "./live.js";

const MOST_NODES = 200;
const MOST_WAITING = 50;
const byName = new Intl.Collator("en", { numeric: true });
const at = (id) => document.getElementById(id);
const users = (gpu) => [...gpu.pods, ...gpu.reserved];
/** The part of a GPU that is held or reserved. */
const held = (gpu) => (gpu.whole ? Number(users(gpu).length > 0) : gpu.memory ? gpu.used_memory / gpu.memory : 0);
const bytes = (units, node) => gib(units * node.unit_mib * 2 ** 20);

function facts(nodes, waiting) {
  const gpus = nodes.flatMap((node) => node.gpus.map((gpu) => ({ ...gpu, unit: node.unit_mib * 2 ** 20 })));
  const [shared, whole] = [gpus.filter((gpu) => gpu.memory && !gpu.whole), gpus.filter((gpu) => gpu.whole)];
  const memory = sum(shared.map((gpu) => gpu.memory * gpu.unit));
  const used = sum(shared.map((gpu) => gpu.used_memory * gpu.unit));
  const found = {
    nodes: nodes.length,
    "nodes not ready": nodes.filter((node) => !node.ready).length || "",
    GPUs: gpus.length,
    "not usable": gpus.filter((gpu) => !gpu.usable).length,
    "memory held": memory ? `${gib(used)} of ${gib(memory)}, ${percent(used / memory)}` : "",
    "whole GPUs held": whole.length ? `${sum(whole.map(held))} of ${whole.length}` : "",
    "pods that wait": Object.keys(waiting).length,
  };
  return Object.entries(found)
    .filter(([, value]) => value !== "")
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
}

function waits(waiting) {
  const found = Object.entries(waiting);
  const shown = found.slice(0, MOST_WAITING).map(([pod, why]) => [pod, why || "not tried yet"]);
  const more = found.length > MOST_WAITING ? element("p", { className: "quiet" }, `and ${found.length - MOST_WAITING} more`) : "";
  const table = element("table", { className: "long" }, rows([["pod that waits", "why"], ...shown]));
  return found.length ? [element("div", { className: "card wide" }, table, more)] : [];
}

/** GPUs in a row that are the same and have no pods are one. */
function grouped(gpus) {
  const groups = [];
  for (const gpu of gpus) {
    const [first] = groups.at(-1) ?? [];
    const { minor: _, ...now } = gpu;
    const { minor: __, ...before } = first ?? {};
    const same = first && !users(gpu).length && JSON.stringify(now) === JSON.stringify(before);
    if (same) groups.at(-1)[1] = gpu.minor;
    else groups.push([gpu]);
  }
  return groups;
}

function gpuRow([gpu, until], node) {
  const free = gpu.whole ? (users(gpu).length || !node.ready ? "" : "free") : `${bytes(gpu.free_memory, node)} of ${bytes(gpu.memory, node)} free`;
  const compute = gpu.core && !gpu.whole ? `${gpu.free_core} % free` : "";
  const pods = [...gpu.pods, ...gpu.reserved.map((pod) => `${pod} (reserved)`)];
  const says = gpu.usable ? [free, compute].filter(Boolean).join(", ") : "not usable";
  const name = until === undefined ? `GPU ${gpu.minor}` : `GPU ${gpu.minor} to ${until}`;
  const part = bar(`${name}: ${says}`, [[held(gpu), `held ${gpu.reserved.length ? "tone1" : "tone0"}`, says]]);
  return element(
    "div",
    { className: "measure" },
    element("div", { className: "says" }, element("span", {}, name), element("span", { className: gpu.usable ? "" : "bad" }, says)),
    part,
    pods.length ? element("p", { className: "quiet names" }, pods.join(", ")) : "",
  );
}

/** What a pod can get on a node, in words. */
function room(node) {
  const [shared, whole] = [node.gpus.filter((gpu) => gpu.memory && !gpu.whole), node.gpus.filter((gpu) => gpu.whole)];
  const free = bytes(sum(shared.map((gpu) => (gpu.usable ? gpu.free_memory : 0))), node);
  const found = [];
  if (shared.length) found.push(`${free} of ${bytes(sum(shared.map((gpu) => gpu.memory)), node)} free`);
  if (whole.length) found.push(`${whole.filter((gpu) => node.ready && gpu.usable && !users(gpu).length).length} of ${whole.length} GPUs free`);
  return found.join(", ");
}

const wrong = (node) => !node.ready || Boolean(node.problem) || node.gpus.some((gpu) => !gpu.usable) || node.pods_without_known_gpus.length > 0;

function card(node) {
  const lost = node.pods_without_known_gpus;
  return element(
    "article",
    { className: "card" },
    element("h2", {}, node.name),
    element("p", { className: "quiet" }, [node.model, node.mode && `mode ${node.mode}`, room(node)].filter(Boolean).join(", ")),
    node.ready ? "" : element("p", { className: "cause" }, `nothing is free: node ${node.why_not_ready}`),
    node.problem ? element("p", { className: "cause" }, node.problem) : "",
    node.published ? "" : element("p", { className: "quiet" }, "publishes no GPUs; counted by its amounts"),
    lost.length ? element("p", { className: "cause" }, `counted on every GPU, as theirs are not known: ${lost.join(", ")}`) : "",
    grouped(node.gpus).map((group) => gpuRow(group, node)),
  );
}

const has = (node, text) =>
  [node.name, ...node.gpus.flatMap(users), ...node.pods_without_known_gpus].some((name) => name.includes(text));

let last = null;
function show() {
  const text = at("named").value.trim();
  const found = text ? last.nodes.filter((node) => has(node, text)) : last.nodes;
  at("facts").replaceChildren(...facts(last.nodes, last.waiting));
  at("waiting").replaceChildren(...waits(last.waiting));
  at("nodes").replaceChildren(...found.slice(0, MOST_NODES).map(card));
  const left = found.length - MOST_NODES;
  at("more").textContent = left > 0 ? `${left} more nodes: name one above` : found.length ? "" : "no such node";
}

async function turn() {
  last = JSON.parse(await read("usage"));
  last.nodes.sort((one, other) => wrong(other) - wrong(one) || byName.compare(one.name, other.name));
  show();
}

at("named").addEventListener("input", () => last && show());
live(turn, 3000);
