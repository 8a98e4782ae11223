// One node: its problems, its GPUs with memory and compute, its pods with amounts, and commands that say more.
import { amountWords, heldWords, largestWords, memoryWords } from "./fleet.js";
import { bar, element, longText } from "./live.js";
import { copyable, inspectCommand, table } from "./parts.js";

/** Fill the panel; what is unchanged stays, so that focus, scrolling and selected text do. */
export function showDetails(panel, { name, node, pods, problemsUrl, agents, close }) {
  const key = JSON.stringify([name, node, pods, problemsUrl, agents]);
  if (panel.key === key) return;
  const isSameNode = panel.dataset.name === name;
  const { scrollTop } = panel;
  const hadFocus = panel.contains(document.activeElement) && document.activeElement.className === "close";
  panel.key = key;
  panel.dataset.name = name;
  const closing = element("button", { type: "button", className: "close", "aria-label": "close", title: "close (Esc)" }, "×");
  closing.addEventListener("click", close);
  const content = node ? known(node, pods ?? [], problemsUrl, agents) : [element("p", { className: "cause" }, "The cluster has no node of this name with GPUs.")];
  panel.replaceChildren(element("header", {}, element("h2", {}, name), closing), ...content);
  if (isSameNode) panel.scrollTop = scrollTop;
  if (hadFocus) closing.focus();
}

function known(node, pods, problemsUrl, agents) {
  const words = heldWords(node);
  const found = {
    mode: node.mode || "not known",
    model: node.model,
    "usable GPUs": `${node.usable} of ${node.count}`,
    "memory held": words.memory,
    "compute held": words.core,
    "whole GPUs held": words.whole,
    "largest free": node.gpus.length ? largestWords(node) : "",
  };
  const facts = Object.entries(found)
    .filter(([, value]) => value)
    .map(([title, value]) => element("div", {}, element("dt", {}, title), element("dd", {}, value)));
  return [
    element("dl", {}, facts),
    ...node.problems.map((problem) => problemBox(problem, problemsUrl)),
    element("h3", {}, "GPUs"),
    ...(node.gpus.length ? node.gpus.map((gpu) => gpuBars(gpu, node)) : [element("p", { className: "quiet" }, without(node))]),
    ...podList(node, pods),
    element("h3", {}, "More about it"),
    element("p", {}, "Used memory, temperature, processes and the last hour are known to the node's agent:"),
    copyable(inspectCommand(`status ${node.name}`, agents)),
    element("p", {}, "Its page in a browser, ", element("a", { href: pageOf(agents), rel: "noreferrer" }, pageOf(agents)), ", while this command runs:"),
    copyable(portForward(node, agents)),
    element("p", {}, "Events about the node:"),
    copyable(`kubectl get events -A --field-selector involvedObject.kind=Node,involvedObject.name=${node.name}`),
  ];
}

/** The agent's page, through the command that makes it reachable. */
const pageOf = ({ port }) => `http://127.0.0.1:${port}/`;

function portForward(node, { namespace, port }) {
  const labels = "app.kubernetes.io/name=gpuagent,app.kubernetes.io/component=agent";
  const pod = `kubectl -n ${namespace} get pod -o name --field-selector spec.nodeName=${node.name} -l ${labels}`;
  return `kubectl -n ${namespace} port-forward "$(${pod})" ${port}`;
}

function without(node) {
  if (node.mode === "dra") return "Its GPUs are given by claims: kubectl inspect cgpu shows who has them.";
  if (node.severity === "blocking") return "None is offered to pods: the problems say why.";
  return "None is offered to pods that gpuscheduler places.";
}

function problemBox({ severity, reason, message, isDocumented }, problemsUrl) {
  const section = `#${reason.toLowerCase()}`;
  const heading = problemsUrl && isDocumented ? element("a", { href: `${problemsUrl}${section}`, rel: "noreferrer" }, reason) : reason || "problem";
  // Without the address of the documentation, its reader finds the section by name.
  const whatToDo = !problemsUrl && isDocumented ? element("p", { className: "quiet" }, `What to do: problems.md${section} of the documentation`) : "";
  return element("div", { className: `problem ${severity}` }, element("strong", {}, heading), ` ${severity}: `, longText(message), whatToDo);
}

function gpuBars(gpu, node) {
  const state = gpu.usable ? "" : "not usable, ";
  const bars = [];
  if (gpu.whole) bars.push(measure(`GPU ${gpu.minor}`, gpu.pods ? "held" : gpu.usable ? "free" : "not usable", gpu.held, gpu));
  if (!gpu.whole && gpu.memory) {
    const says = `${state}${memoryWords(gpu.heldMemory, node.unitMib)} of ${memoryWords(gpu.memory, node.unitMib)} held`;
    bars.push(measure(`GPU ${gpu.minor} memory`, says, gpu.heldMemory / gpu.memory, gpu));
  }
  if (!gpu.whole && gpu.core) bars.push(measure(gpu.memory ? "compute" : `GPU ${gpu.minor} compute`, `${gpu.heldCore} % held`, gpu.heldCore / gpu.core, gpu));
  if (!bars.length) bars.push(measure(`GPU ${gpu.minor}`, "in use in another way, or in MIG mode", 0, gpu));
  return element("div", { className: "gpu-bars" }, bars);
}

function measure(title, says, part, gpu) {
  return element(
    "div",
    { className: "measure" },
    element("div", { className: "says" }, element("span", {}, title), element("span", { className: gpu.usable ? "" : "bad" }, says)),
    bar(`${title}: ${says}`, [[part, gpu.usable ? "held tone0" : "held off", says]]),
  );
}

function podList(node, pods) {
  if (!pods.length) return [element("h3", {}, "Pods"), element("p", { className: "quiet" }, node.pods ? "reading …" : "none")];
  const rows = pods.map((pod) => {
    const gpus = Object.keys(pod.gpus).join(", ") || "not known";
    const [namespace, name] = pod.name.split("/");
    const title = [pod.name, pod.reserved ? element("span", { className: "wait" }, " reserved, not started") : ""];
    const events = name ? copyable(`kubectl -n ${namespace} get events --field-selector involvedObject.name=${name}`) : "";
    return [title, gpus, amountWords(pod, node.unitMib), events];
  });
  return [element("h3", {}, `Pods (${pods.length})`), table(["pod", "GPU", "holds", "its events"], rows, "pods")];
}
