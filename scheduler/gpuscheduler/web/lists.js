// Pods that wait, and namespaces with what they hold.
import { amountWords } from "./fleet.js";
import { element, gib } from "./live.js";
import { copyable, table } from "./parts.js";

const MOST = 300;
const MIB = 2 ** 20;
const COMMON_MIB = 1024; // the default; a pod asks for units before it is known on which node it will be

/** The pods that wait, each with the reason. */
export function waitingView(fleet, filter) {
  const units = new Set(fleet.nodes.map((node) => node.unitMib).filter(Boolean));
  const unitMib = units.size > 1 ? 0 : ([...units][0] ?? COMMON_MIB);
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = fleet.waiting.filter(({ pod, why }) => words.every((word) => `${pod} ${why}`.toLowerCase().includes(word)));
  const rows = found.map(({ pod, memory, core, gpus, why }) => {
    const [namespace, name] = pod.split("/");
    return [pod, amountWords({ memory, core, whole: gpus }, unitMib), why || "not tried yet", copyable(`kubectl inspect cgpu -n ${namespace} --why ${name}`)];
  });
  const all = fleet.waitingCount;
  const more = all > fleet.waiting.length ? `${fleet.waiting.length} of ${all} pods that wait are listed. usage has all of them.` : "";
  if (!rows.length) return [element("p", { className: "quiet" }, all ? "no such pod" : "No pod waits for GPUs.")];
  return [table(["pod", "asks for", "why it waits", "more about it"], rows), element("p", { className: "quiet" }, more)];
}

/** What the pods of each namespace hold, the most memory first. */
export function namespacesView(fleet, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = fleet.namespaces.filter(({ name }) => words.every((word) => name.includes(word)));
  found.sort((one, other) => other.mib - one.mib || other.whole - one.whole || other.core - one.core);
  const rows = found.slice(0, MOST).map(({ name, pods, mib, core, whole, waiting }) => [
    element("a", { href: `?q=${encodeURIComponent(`${name}/`)}`, "data-filter": `${name}/` }, name),
    String(pods),
    mib ? gib(mib * MIB) : "–",
    core ? `${core} %` : "–",
    whole ? String(whole) : "–",
    waiting ? String(waiting) : "–",
  ]);
  const about = [
    "Held and reserved. Compute is in percent of one GPU, so 250 % are two and a half. ",
    "How much of it is used, and how much is wasted, the agents know: ",
    copyable("kubectl inspect cgpu --waste"),
  ];
  if (!rows.length) return [element("p", { className: "quiet" }, "no such namespace")];
  return [
    table(["namespace", "pods", "memory held", "compute held", "whole GPUs held", "waiting pods"], rows, "numbers"),
    element("p", { className: "quiet" }, about),
  ];
}
