// What joins the GPUs of a node: the GPUs on a ring, a line for each pair with links of its own, and a legend.
import { element } from "./live.js";

const SIZE = 440;
const MIDDLE = SIZE / 2;
const RING = 165;
const GPU_RADIUS = 30;
const HUB_RADIUS = 42;

/** Types of links by PCIe, nearest first. Only the first two get a line: the others pass the CPU. */
const PCIE = {
  PIX: "over one PCIe switch at most",
  PXB: "over several PCIe switches, not the CPU",
  PHB: "through a PCIe host bridge of the CPU",
  NODE: "through host bridges of one NUMA node",
  SYS: "between NUMA nodes, from CPU to CPU",
};
const DRAWN_PCIE = ["PIX", "PXB"];

const nvlinks = (link) => (link.type in PCIE ? 0 : Number(link.type.slice("NV".length)));
const isDrawn = (link) => nvlinks(link) > 0 || DRAWN_PCIE.includes(link.type);
const gbps = (link) => `${Number(link.gbps.toFixed(2))} GB/s`;

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Every two GPUs once: [link, number of the first, number of the second]. */
function pairs(links) {
  return links.flatMap((row, i) => row.slice(i + 1).map((link, n) => [link, i, i + 1 + n]));
}

/** The different links, those with the most bandwidth first. */
function kinds(links) {
  const byType = new Map();
  for (const [link] of pairs(links)) {
    const best = byType.get(link.type);
    if (!best || best.gbps < link.gbps) byType.set(link.type, link);
  }
  return [...byType.values()].sort((one, other) => other.gbps - one.gbps);
}

/** A class for each kind of link: colors go to NVLinks, most first. */
function lineClass(link, shown) {
  if (!nvlinks(link)) return "line pcie";
  const place = shown.filter(nvlinks).findIndex((other) => other.type === link.type);
  return `line tone${place % 4}`;
}

function spots(count) {
  return Array.from({ length: count }, (_, n) => {
    const turn = (2 * Math.PI * (n + 0.5)) / count - Math.PI / 2;
    return [MIDDLE + RING * Math.cos(turn), MIDDLE + RING * Math.sin(turn)];
  });
}

function line([x1, y1], [x2, y2], link, shown, says) {
  const width = 1.5 + Math.min(nvlinks(link), 4);
  const attributes = { class: lineClass(link, shown), x1, y1, x2, y2, "stroke-width": width };
  return shape("line", attributes, shape("title", {}, `${says}: ${link.type}, ${gbps(link)}`));
}

function state(gpu) {
  if (gpu.health === "MIG") return "MIG mode";
  if (gpu.health !== "Healthy") return "unhealthy";
  return gpu.holders.length ? "held" : "free";
}

const stateClass = (name) => `gpu ${name.replace(" ", "-")}`;

function circle(gpu, [x, y]) {
  const numa = gpu.numa_node === null ? "" : `NUMA ${gpu.numa_node}`;
  const says = [`GPU ${gpu.index}: ${state(gpu)}`, ...gpu.holders].join("\n");
  return shape(
    "g",
    { class: stateClass(state(gpu)) },
    shape("title", {}, says),
    shape("circle", { cx: x, cy: y, r: GPU_RADIUS }),
    shape("text", { x, y: numa ? y - 2 : y + 5 }, `GPU ${gpu.index}`),
    shape("text", { x, y: y + 13, class: "small" }, numa),
  );
}

function lines(page, at, shown) {
  const all = pairs(page.links);
  // If all GPUs are joined by one kind of NVLinks through switches, lines between pairs would only hide that.
  if (shown.length === 1 && shown[0].switched) {
    const hub = [MIDDLE, MIDDLE];
    return [
      ...at.map((spot, n) => line(spot, hub, shown[0], shown, `GPU ${page.gpus[n].index} to every other GPU`)),
      shape("circle", { class: "hub", cx: MIDDLE, cy: MIDDLE, r: HUB_RADIUS }),
      shape("text", { class: "hub", x: MIDDLE, y: MIDDLE + 5 }, "NVSwitch"),
    ];
  }
  return all
    .filter(([link]) => isDrawn(link))
    .map(([link, i, j]) => line(at[i], at[j], link, shown, `GPU ${page.gpus[i].index} to GPU ${page.gpus[j].index}`));
}

function meaning(link) {
  if (!nvlinks(link)) return PCIE[link.type];
  const count = nvlinks(link) === 1 ? "1 NVLink" : `${nvlinks(link)} NVLinks`;
  return link.switched ? `${count} of each GPU, through NVSwitches` : `${count}, straight to the other GPU`;
}

function entry(sample, name, text) {
  const drawing = shape("svg", { viewBox: "0 0 40 14", width: 40, height: 14, "aria-hidden": "true" }, ...sample);
  return element("li", {}, drawing, element("span", {}, element("strong", {}, name), ` ${text}`));
}

function legend(page, shown) {
  const links = shown.map((link) => {
    const sample = isDrawn(link) ? [line([0, 7], [40, 7], link, shown, link.type)] : [];
    return entry(sample, link.type, `${meaning(link)}: ${gbps(link)} each way`);
  });
  const states = [...new Set(page.gpus.map(state))].sort().map((name) => {
    const sample = shape("g", { class: stateClass(name) }, shape("circle", { cx: 20, cy: 7, r: 5 }));
    const count = page.gpus.filter((gpu) => state(gpu) === name).length;
    return entry([sample], name, `${count} of ${page.gpus.length} GPUs`);
  });
  return element("ul", { className: "legend" }, links, states);
}

/** The drawing and the legend of a page `/topology`. */
export function drawLinks(page) {
  if (!page.gpus.length) return [element("p", { className: "quiet" }, "no GPUs")];
  const shown = kinds(page.links);
  const at = spots(page.gpus.length);
  const circles = page.gpus.map((gpu, n) => circle(gpu, at[n]));
  const says = `${page.gpus.length} GPUs, joined by ${shown.map((link) => link.type).join(", ") || "nothing"}`;
  const drawing = shape(
    "svg",
    { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "img", "aria-label": says },
    ...lines(page, at, shown),
    ...circles,
  );
  return [drawing, legend(page, shown)];
}
