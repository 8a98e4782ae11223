// The heat grid: a cell for each node, in the order of the table. The fuller a node, the stronger its color.
import { heldWords, largestWords } from "./fleet.js";

const MOST_HEIGHT = 300;
const CELLS = [44, 36, 30, 26, 22, 18, 16, 14, 12, 10, 9, 8, 7, 6, 5, 4];
const GPUS_FROM = 22; // pixels of a cell from which on its GPUs are told apart

/** The largest cells with which all nodes are in the grid. */
function layout(canvas, count) {
  const width = canvas.parentElement.clientWidth;
  const fits = (size) => Math.ceil(count / Math.max(Math.floor(width / size), 1)) * size <= MOST_HEIGHT;
  const size = CELLS.find(fits) ?? CELLS.at(-1);
  const columns = Math.max(Math.min(Math.floor(width / size), count), 1);
  return { size, columns, rows: Math.ceil(count / columns) };
}

export function drawHeat(canvas, nodes, chosen) {
  const { size, columns, rows } = layout(canvas, nodes.length);
  const scale = devicePixelRatio || 1;
  const [width, height] = [columns * size, rows * size];
  canvas.hidden = nodes.length === 0;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const troubled = nodes.filter((node) => node.severity === "blocking").length;
  canvas.setAttribute("aria-label", `Heat grid: ${nodes.length} nodes, ${troubled} of them cannot serve. Arrow keys move, Enter opens a node`);
  const order = nodes.map(({ name }) => name).join();
  const isOther = canvas.grid?.order !== order || canvas.grid.columns !== columns;
  canvas.grid = { size, columns, order };
  if (isOther) canvas.dispatchEvent(new Event("drawn"));
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const colors = { track: color("track"), held: color("tone0"), bad: color("bad"), warning: color("warn"), ink: color("ink"), off: color("off") };
  nodes.forEach((node, place) => {
    const left = (place % columns) * size;
    const top = Math.floor(place / columns) * size;
    drawNode(pen, node, { left, top, size, colors, isChosen: node.name === chosen });
  });
}

function drawNode(pen, node, { left, top, size, colors, isChosen }) {
  const gap = size >= 14 ? 2 : 1;
  const side = size - gap;
  pen.fillStyle = colors.track;
  pen.fillRect(left, top, side, side);
  if (node.severity === "blocking") {
    pen.fillStyle = colors.bad;
    pen.fillRect(left, top, side, side);
  } else if (size >= GPUS_FROM && node.gpus.length) {
    const width = side / node.gpus.length;
    node.gpus.forEach((gpu, place) => {
      const height = gpu.usable ? Math.min(gpu.held, 1) * side : side;
      pen.fillStyle = gpu.usable ? colors.held : colors.off;
      pen.fillRect(left + place * width, top + side - height, Math.max(width - 1, 1), height);
    });
  } else {
    pen.globalAlpha = Math.min(node.held, 1);
    pen.fillStyle = colors.held;
    pen.fillRect(left, top, side, side);
    pen.globalAlpha = 1;
  }
  if (node.severity === "warning") {
    const edge = Math.max(side / 3, 3);
    pen.fillStyle = colors.warning;
    pen.beginPath();
    pen.moveTo(left + side - edge, top);
    pen.lineTo(left + side, top);
    pen.lineTo(left + side, top + edge);
    pen.fill();
  }
  if (isChosen) {
    pen.strokeStyle = colors.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, top + 1, side - 2, side - 2);
  }
}

/** A node in one sentence. */
function sentence(node) {
  const words = heldWords(node);
  const held = [words.memory, words.core && `${words.core} of compute`, words.whole].filter(Boolean).join(", ");
  const parts = [held && `${held} held`, node.gpus.length ? `largest free: ${largestWords(node)}` : ""];
  const reasons = [...new Set(node.problems.map(({ severity, reason }) => `${reason} (${severity})`))];
  return `${node.name}: ${[node.mode && `mode ${node.mode}`, ...parts, ...reasons].filter(Boolean).join("; ")}`;
}

const SIGNS = "Red: the node cannot serve. Orange corner: a warning.";
const LEGEND = `A cell is a node: the fuller, the stronger its color. ${SIGNS}`;
const GPUS_LEGEND = `A cell is a node, a bar one of its GPUs: how much of its memory or compute is held, whichever is more. Gray: not usable. ${SIGNS}`;

/** Have pointer and keys name the node of a cell, and open it. */
export function heatNode(canvas, text, nodes, open) {
  let place = -1;
  const say = (next) => {
    place = next;
    const node = nodes()[place];
    const legend = canvas.grid.size >= GPUS_FROM ? GPUS_LEGEND : LEGEND;
    text.textContent = node ? sentence(node) : legend;
  };
  // What is drawn anew has other nodes in its cells.
  canvas.addEventListener("drawn", () => say(-1));
  canvas.addEventListener("pointermove", (event) => {
    const { size, columns } = canvas.grid;
    const column = Math.floor(event.offsetX / size);
    say(column < columns ? Math.floor(event.offsetY / size) * columns + column : -1);
  });
  canvas.addEventListener("pointerleave", () => say(-1));
  canvas.addEventListener("click", () => nodes()[place] && open(nodes()[place]));
  canvas.addEventListener("keydown", (event) => {
    const { columns } = canvas.grid;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (step) {
      event.preventDefault();
      say(Math.max(0, Math.min(place < 0 ? 0 : place + step, nodes().length - 1)));
    } else if (event.key === "Enter" && nodes()[place]) {
      event.preventDefault();
      open(nodes()[place]);
    }
  });
}
