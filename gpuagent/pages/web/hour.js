// The last hour of a GPU as a small drawing: memory in use and work, a point for each minute.
import { element, percent } from "./live.js";

const MINUTES = 60;
const HEIGHT = 30;

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** The path of the minutes that are known; the last one is at the right. */
function path(values) {
  const first = MINUTES - values.length;
  let isDown = false;
  const steps = [];
  values.forEach((value, place) => {
    if (value === null) {
      isDown = false;
      return;
    }
    const [x, y] = [first + place, HEIGHT - (value / 100) * HEIGHT];
    // A step for each minute: a single one between gaps is seen as well.
    steps.push(`${isDown ? "L" : "M"}${x} ${y}H${x + 1}`);
    isDown = true;
  });
  return steps.join("");
}

function words(name, values) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return "";
  const mean = known.reduce((all, one) => all + one, 0) / known.length;
  return `${name} ${percent(mean / 100)} on average, ${percent(Math.max(...known) / 100)} at most`;
}

/** The drawing, with its words; nothing if no container has held the GPU in the last hour. */
export function drawHour(hour) {
  if (!hour) return "";
  const says = [words("memory used", hour.memory), words("busy", hour.busy)].filter(Boolean);
  if (!says.length) return "";
  const drawing = shape("svg", { viewBox: `0 0 ${MINUTES} ${HEIGHT}`, preserveAspectRatio: "none", class: "hour", role: "img", "aria-label": `last hour: ${says.join("; ")}` });
  drawing.append(shape("path", { d: path(hour.memory), class: "hour-memory" }), shape("path", { d: path(hour.busy), class: "hour-busy" }));
  const keys = says.map((text, place) => element("span", { className: place || !hour.memory.some((value) => value !== null) ? "key-busy" : "key-memory" }, text));
  return element("div", { className: "measure" }, element("div", { className: "says" }, element("span", {}, "Last hour")), drawing, element("p", { className: "quiet keys" }, keys));
}
