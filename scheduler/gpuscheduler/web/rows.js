// A table of thousands of rows, of which only those in the window are there. All rows are of one height.
import { element } from "./live.js";

const BEYOND = 8; // rows above and below the window, so that scrolling shows no gap

export class VirtualRows {
  /** `cells` makes the cells of a row for a node, `open` is called when one is chosen. */
  constructor(table, { cells, open }) {
    this.table = table;
    this.cells = cells;
    this.open = open;
    this.nodes = [];
    this.made = new Map();
    this.active = 0;
    this.head = element("tr", { role: "row" });
    this.body = element("tbody", { role: "rowgroup" });
    table.setAttribute("role", "table");
    table.replaceChildren(element("thead", { role: "rowgroup" }, this.head), this.body);
    this.above = spacer();
    this.below = spacer();
    // Also of the box around the table, whose events do not bubble.
    addEventListener("scroll", () => this.render(), { passive: true, capture: true });
    addEventListener("resize", () => this.render());
    this.body.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (event) => this.#click(event));
  }

  /** Show these nodes, and mark the chosen one. */
  show(heads, nodes, chosen) {
    const name = this.nodes[this.active]?.name;
    this.nodes = nodes;
    this.chosen = chosen;
    // The node that has the focus keeps it wherever it is now.
    const place = nodes.findIndex((node) => node.name === name);
    this.active = place < 0 ? Math.min(this.active, Math.max(nodes.length - 1, 0)) : place;
    const focused = this.head.contains(document.activeElement) ? [...this.head.children].findIndex((one) => one.contains(document.activeElement)) : -1;
    this.head.replaceChildren(...heads);
    if (focused >= 0) this.head.children[focused].firstElementChild.focus();
    this.table.setAttribute("aria-rowcount", String(nodes.length + 1));
    this.render();
  }

  /** Give a node's row the focus. */
  focus(name) {
    const place = this.nodes.findIndex((node) => node.name === name);
    if (place >= 0) this.#activate(place);
  }

  render() {
    const height = this.#height();
    const top = this.body.getBoundingClientRect().top;
    const view = this.#view();
    const first = Math.max(Math.floor((view.top - top) / height) - BEYOND, 0);
    const last = Math.min(Math.ceil((view.bottom - top) / height) + BEYOND, this.nodes.length);
    const start = Math.min(first, this.nodes.length);
    const nodes = this.nodes.slice(start, Math.max(last, start));
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.name : undefined;
    const made = new Map();
    const trs = nodes.map((node, offset) => {
      const tr = this.#row(node, start + offset);
      made.set(node.name, tr);
      return tr;
    });
    this.made = made;
    this.above.style.height = `${start * height}px`;
    this.below.style.height = `${(this.nodes.length - start - nodes.length) * height}px`;
    const isActiveShown = this.active >= start && this.active < start + nodes.length;
    if (!isActiveShown && trs.length) trs[0].tabIndex = 0;
    const wanted = [this.above, ...trs, this.below];
    const isSame = wanted.length === this.body.children.length && wanted.every((tr, place) => tr === this.body.children[place]);
    // To put a row in anew would take its focus and end a selection of text.
    if (!isSame) this.body.replaceChildren(...wanted);
    if (focused && document.activeElement?.dataset.name !== focused) made.get(focused)?.focus({ preventScroll: true });
  }

  #row(node, place) {
    const known = this.made.get(node.name);
    const isChosen = node.name === this.chosen;
    const tr = known?.node === node ? known : element("tr", { role: "row", "data-name": node.name }, this.cells(node));
    tr.node = node;
    if (known && known !== tr && known === document.activeElement) {
      // The same element stays, so that it keeps the focus.
      known.replaceChildren(...tr.childNodes);
      known.node = node;
      return this.#marked(known, place, isChosen);
    }
    return this.#marked(tr, place, isChosen);
  }

  #marked(tr, place, isChosen) {
    tr.tabIndex = place === this.active ? 0 : -1;
    tr.classList.toggle("chosen", isChosen);
    tr.setAttribute("aria-rowindex", String(place + 2));
    if (isChosen) tr.setAttribute("aria-current", "true");
    else tr.removeAttribute("aria-current");
    return tr;
  }

  #height() {
    return parseFloat(getComputedStyle(this.table).getPropertyValue("--row"));
  }

  /** The box around the table, if it scrolls by itself: on a phone, so that the page stays short. */
  #box() {
    const box = this.table.parentElement;
    return getComputedStyle(box).overflowY === "auto" ? box : null;
  }

  /** From where to where rows can be seen. */
  #view() {
    const box = this.#box()?.getBoundingClientRect();
    return box ? { top: Math.max(box.top, 0), bottom: Math.min(box.bottom, innerHeight) } : { top: 0, bottom: innerHeight };
  }

  #activate(place) {
    this.active = place;
    const height = this.#height();
    const box = this.#box();
    box?.scrollIntoView({ block: "nearest" });
    const view = this.#view();
    const top = this.body.getBoundingClientRect().top + place * height;
    // The heads stay at the top of the window.
    const covered = box ? 0 : this.head.getBoundingClientRect().height;
    const start = view.top + covered;
    // In the box, the heads are above the first row, and scroll with it.
    if (box && place === 0) box.scrollTop = 0;
    else if (top < start) (box ?? window).scrollBy(0, top - start);
    else if (top + height > view.bottom) (box ?? window).scrollBy(0, top + height - view.bottom);
    this.render();
    this.made.get(this.nodes[place].name)?.focus({ preventScroll: true });
  }

  #key(event) {
    const view = this.#view();
    const page = Math.max(Math.floor((view.bottom - view.top) / this.#height()) - 2, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.nodes.length, End: this.nodes.length };
    const step = steps[event.key];
    if (step) {
      event.preventDefault();
      const from = this.nodes.findIndex((node) => node.name === event.target.dataset.name);
      const to = (from < 0 ? this.active : from) + step;
      this.#activate(Math.max(0, Math.min(to, this.nodes.length - 1)));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#choose(event.target);
    }
  }

  #click(event) {
    const isOther = event.ctrlKey || event.metaKey || event.shiftKey;
    if (isOther || String(getSelection())) return;
    event.preventDefault();
    this.#choose(event.target);
  }

  #choose(target) {
    const node = target.closest("tr")?.node;
    if (!node) return;
    this.active = this.nodes.indexOf(node);
    this.open(node);
  }
}

function spacer() {
  return element("tr", { className: "spacer", "aria-hidden": "true" });
}
