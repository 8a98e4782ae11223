// The node live: who holds how much of each GPU and how much of it is used. All of it is in status, topology and metrics.
import { drawHour } from "./hour.js";
import { drawLinks } from "./links.js";
import { bar, element, gib, live, longText, percent, read, rows, showIfChanged, sum } from "./live.js";

const HOUR_EVERY_MS = 60_000; // it has a new minute once a minute
const at = (id) => document.getElementById(id);
const SERIES = /^(gpuagent_(?:gpu|container_gpu)_\w+)\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const plain = (text) => text.replace(/\\(.)/g, (_, one) => (one === "n" ? "\n" : one));

/** The series of GPUs and containers: [name, labels, value]. Format: Prometheus' text format. */
function series(text) {
  return text.split("\n").flatMap((line) => {
    const found = SERIES.exec(line);
    if (!found) return [];
    const labels = Object.fromEntries([...found[2].matchAll(LABEL)].map(([, name, value]) => [name, plain(value)]));
    return [[found[1], labels, Number(found[3])]];
  });
}

/** By UUID the values of each GPU, and of each of its containers by name. */
function byGpu(all) {
  const gpus = new Map();
  for (const [name, labels, value] of all) {
    if (!labels.UUID) continue;
    if (!gpus.has(labels.UUID)) gpus.set(labels.UUID, { values: {}, containers: new Map() });
    const gpu = gpus.get(labels.UUID);
    if (!name.startsWith("gpuagent_container_")) {
      gpu.values[name.slice("gpuagent_gpu_".length)] = value;
      continue;
    }
    // The agent keeps the sums of a container for five minutes after its end, so they alone do not make a row.
    if (name.endsWith("_total")) continue;
    const container = `${labels.namespace}/${labels.pod}[${labels.container}]`;
    if (!gpu.containers.has(container)) gpu.containers.set(container, {});
    gpu.containers.get(container)[name.slice("gpuagent_container_gpu_".length)] = value;
  }
  return gpus;
}

function facts(status, known) {
  const isolation = [status.isolation.driver, status.isolation.version].filter(Boolean).join(" ");
  const held = [...known.values()].map((gpu) => gpu.values.memory_allocated_bytes).filter((bytes) => bytes !== undefined);
  const total = sum(status.gpus.map((gpu) => gpu.memory_mib * 2 ** 20));
  const found = {
    "healthy GPUs": `${status.gpus.filter((gpu) => gpu.health === "Healthy").length} of ${status.gpus.length}`,
    "memory held": held.length ? `${gib(sum(held))} of ${gib(total)}` : "",
    mode: status.mode,
    placement: status.placement,
    isolation,
    "unit of memory": status.memory_unit,
    "NVIDIA driver": status.driver_version,
    gpuagent: status.version,
  };
  return Object.entries(found)
    .filter(([, value]) => value)
    .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
}

function showProblems(status) {
  const found = status.problems.map((problem) => [problem.severity, problem.reason, problem.message]);
  const waits = status.switch.waiting_for.map((one) => one.container);
  if (status.switch.phase !== "steady") {
    const names = [...new Set(waits)].join(", ");
    found.push(["", `Mode switch ${status.switch.phase}`, names ? `waits for ${names}` : ""]);
  }
  showIfChanged(at("problems"), found, () =>
    found.map(([severity, reason, text]) => {
      const rating = severity ? ` ${severity}: ` : " ";
      return element("div", { className: `problem ${severity}` }, element("strong", {}, reason), rating, longText(text));
    }),
  );
}

function health(gpu) {
  if (gpu.mig) return element("span", { className: "badge off" }, "MIG");
  if (gpu.recovering) return element("span", { className: "badge wait", title: gpu.cause ?? "" }, "recovering");
  return element("span", { className: `badge ${gpu.cause ? "bad" : "good"}` }, gpu.health);
}

/** By UUID and container what each uses as a rule and at most, as the agent has added it up. */
function overTime(usage = []) {
  const found = new Map();
  for (const use of usage) found.set(overTimeKey(use.uuid, `${use.namespace}/${use.pod}[${use.container}]`), use);
  return found;
}

const overTimeKey = (uuid, container) => `${uuid} ${container}`;

/** Below the name of a container: with both, a reader sees whether a smaller share would do now and then, or always. */
function usualAndPeak(use) {
  if (!Number.isFinite(use?.used_p95_bytes) || !Number.isFinite(use.used_peak_bytes)) return "";
  const title = "used memory: what it stayed below for 95 % of the time, and the most of all readings";
  return element("div", { className: "quiet usual", title }, `p95 ${gib(use.used_p95_bytes)}, peak ${gib(use.used_peak_bytes)}`);
}

/** A container's amounts in words; without an allocation it holds nothing. */
function words(values) {
  const parts = [];
  if (values.memory_limit_bytes !== undefined) parts.push(gib(values.memory_limit_bytes));
  if (values.compute_limit_ratio !== undefined) parts.push(percent(values.compute_limit_ratio));
  const used = [];
  if (values.memory_used_bytes !== undefined) used.push(gib(values.memory_used_bytes));
  if (values.compute_used_ratio !== undefined) used.push(percent(values.compute_used_ratio));
  return [parts.join(", ") || "–", used.join(", ") || "–"];
}

/** The parts of a bar, a color for each container, as in the table below it. */
function parts(containers, limit, total) {
  return containers
    .map(([name, one], n) => [one[limit] / total, `held tone${n % 4}`, `${name}: ${words(one)[0]}`])
    .filter(([part]) => !Number.isNaN(part));
}

function memory(values, containers, total) {
  const held = values.memory_allocated_bytes;
  const used = values.memory_used_bytes;
  const shares = parts(containers, "memory_limit_bytes", total);
  const says = held === undefined ? "allocations not known" : `${gib(held)} of ${gib(total)} held`;
  const uses = used === undefined ? "" : `${gib(used)} used`;
  return measure("Memory", says, uses, scaled(shares, held / total), used && used / total);
}

/** A claim that several containers use is allocated once: all parts together are at most what is held. */
function scaled(shares, held) {
  const all = sum(shares.map(([part]) => part));
  const scale = all > held ? held / all : 1;
  return shares.map(([part, ...more]) => [part * scale, ...more]);
}

function compute(values, containers) {
  const held = values.compute_allocated_ratio;
  const busy = values.utilization_ratio;
  if (held === undefined && busy === undefined) return "";
  const says = held === undefined ? "" : `${percent(held)} held`;
  const uses = busy === undefined ? "" : `${percent(busy)} busy`;
  return measure("Compute", says, uses, scaled(parts(containers, "compute_limit_ratio", 1), held), busy);
}

function measure(name, held, used, parts, use) {
  const says = [held, used].filter(Boolean).join(", ");
  const below = use === undefined ? "" : bar(used, [[use, "used", used]]);
  return element(
    "div",
    { className: "measure" },
    element("div", { className: "says" }, element("span", {}, name), element("span", {}, says)),
    bar(`${name}: ${says}`, parts),
    below,
  );
}

/** The row of memory that is in use and belongs to no container; none if there is no such memory. */
function unattributed(values) {
  const bytes = values.memory_unattributed_bytes;
  if (!bytes) return [];
  const processes = values.unattributed_processes;
  const counted = processes ? `, ${processes} ${processes === 1 ? "process" : "processes"}` : "";
  return [[element("span", { className: "key none" }, `no container${counted}`), "–", gib(bytes)]];
}

function card(gpu, known, hour, uses) {
  const { values = {} } = known ?? {};
  const containers = [...(known?.containers ?? [])].sort(([one], [other]) => (one < other ? -1 : 1));
  const named = containers.map(([name, one], n) => {
    const label = element("span", { className: `key tone${n % 4}` }, name, usualAndPeak(uses.get(overTimeKey(gpu.uuid, name))));
    return [label, ...words(one)];
  });
  named.push(...unattributed(values));
  const table = rows([["container", "held", "used"], ...named]);
  const more = [];
  if (values.temperature_celsius !== undefined) more.push(`${values.temperature_celsius} °C`);
  if (values.power_watts !== undefined) more.push(`${Math.round(values.power_watts)} W`);
  return element(
    "article",
    { className: "card", id: gpu.uuid },
    element("h2", {}, `GPU ${gpu.index} `, health(gpu)),
    element("p", { className: "quiet" }, [gpu.model, ...more].join(" · ")),
    gpu.cause ? element("p", { className: "cause" }, gpu.cause) : "",
    memory(values, containers, gpu.memory_mib * 2 ** 20),
    compute(values, containers),
    drawHour(hour),
    named.length ? element("div", { className: "wide" }, element("table", {}, table)) : element("p", { className: "quiet" }, "no containers"),
  );
}

function resources(status) {
  const found = Object.entries(status.resources).map(([name, one]) => [
    name,
    String(one.healthy),
    String(one.unhealthy),
    [one.stage, one.problem].filter(Boolean).join(": "),
  ]);
  return rows([["resource", "healthy", "unhealthy", "kubelet"], ...found]);
}

/** The links are read and drawn while they are shown. */
async function links() {
  if (!at("links").open) return;
  const topology = await read("topology").then(JSON.parse);
  at("drawing").replaceChildren(...drawLinks(topology));
}

let hours = {};
let hoursAt = -HOUR_EVERY_MS;

/** Read the last hour now and then. */
async function readHours() {
  if (performance.now() - hoursAt < HOUR_EVERY_MS) return;
  hours = JSON.parse(await read("hour")).gpus;
  hoursAt = performance.now();
}

async function turn() {
  const [status, metrics] = await Promise.all([read("status").then(JSON.parse), read("metrics"), readHours()]);
  const known = byGpu(series(metrics));
  const name = status.node || "this node";
  document.title = `GPUs of ${name}`;
  at("node").textContent = name;
  at("facts").replaceChildren(...facts(status, known));
  showProblems(status);
  const none = element("p", { className: "quiet" }, "no GPUs");
  const uses = overTime(status.usage);
  const cards = status.gpus.map((gpu) => card(gpu, known.get(gpu.uuid), hours[gpu.uuid], uses));
  at("gpus").replaceChildren(...(cards.length ? cards : [none]));
  at("resources").replaceChildren(...resources(status));
  await links();
}

document.querySelector("main").hidden = false;
at("live").textContent = "reading …";
at("links").addEventListener("toggle", () => links().catch(() => {})); // the next turn says what is wrong
at("live").textContent = "reading …";
live(turn, 2000);
