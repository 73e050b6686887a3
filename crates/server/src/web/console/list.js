// Virtual list: of thousands of plants, only the visible ones are in the page.

import { drawingOf, hueOf } from "./drawing.js";

/// Sizes in units of the page's font size, so that larger text gets larger cards.
const SHAPES = {
  cards: { height: 14.75, gap: 1, narrowest: 9.25, template: "card-template" },
  table: { height: 3.75, gap: 0, narrowest: Infinity, template: "row-template" },
};
/// Extra rows above and below the visible ones.
const EXTRA_ROWS = 3;

export class PlantList {
  #host;
  #view = null;
  #canvas = null;
  #plants = [];
  #indexes = new Map();
  /// Elements in the page, by the plant's key.
  #items = new Map();
  #canDelete = () => true;
  #columns = 1;
  #rowHeight = 1;
  #due = 0;

  /// `onOpen` and `onDelete` are called with the plant whose button was pressed.
  constructor(host, { onOpen, onDelete }) {
    this.#host = host;
    const later = () => {
      this.#due ||= requestAnimationFrame(() => this.#paint());
    };
    addEventListener("scroll", later, { passive: true });
    new ResizeObserver(() => this.#measure()).observe(host);
    host.addEventListener("click", (event) => {
      const plant = this.#plantAt(event.target);
      if (plant && event.target.closest(".delete")) onDelete(plant);
      else if (plant) onOpen(plant);
    });
    host.addEventListener("keydown", (event) => {
      const plant = this.#plantAt(event.target);
      if (!plant || event.ctrlKey || event.metaKey || event.altKey) return;
      // A key that is held down deletes one plant.
      if (event.key === "Delete") event.repeat || onDelete(plant);
      else if (!this.#move(plant, event.key, event.target)) return;
      event.preventDefault();
    });
  }

  /// Shows these plants, in this order; those for which `canDelete` returns true have a delete button.
  show(plants, { view, owners, canDelete }) {
    this.#canDelete = canDelete;
    const isNew = view !== this.#view;
    if (isNew) this.#build(view);
    const same = !isNew && plants.length === this.#plants.length && plants.every((plant, place) => plant === this.#plants[place]);
    this.#host.classList.toggle("with-owners", owners);
    if (view === "table") this.#canvas.parentElement.setAttribute("aria-rowcount", String(plants.length + 1));
    if (same) return this.#paint();
    this.#plants = plants;
    this.#indexes = new Map(plants.map((plant, place) => [plant.key, place]));
    this.#measure();
  }

  /// Removes all plants.
  clear() {
    this.#view = this.#canvas = null;
    this.#plants = [];
    this.#indexes.clear();
    this.#host.replaceChildren();
  }

  /// The key of the plant that has the focus.
  get focusedKey() {
    return document.activeElement?.closest?.("[data-key]")?.dataset.key;
  }

  /// Returns the index of a plant among those shown; -1 if it is not shown.
  indexOf(plant) {
    return this.#indexes.get(plant.key) ?? -1;
  }

  /// Scrolls to the plant at this index and focuses a part of it.
  focusAt(place, part = ".name") {
    const plant = this.#plants[Math.max(0, Math.min(place, this.#plants.length - 1))];
    if (!plant) return false;
    const row = Math.floor(this.#indexes.get(plant.key) / this.#columns);
    const bottom = this.#canvas.getBoundingClientRect().top + (row + 1) * this.#rowHeight;
    // For the first row, the headings above it are shown, too.
    const top = row === 0 ? this.#host.getBoundingClientRect().top : bottom - this.#rowHeight;
    // The sticky controls must not cover it.
    const edge = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    if (top < edge || bottom > innerHeight) {
      scrollBy({ top: top < edge ? top - edge : bottom - innerHeight, behavior: "instant" });
    }
    this.#paint(plant);
    const item = this.#items.get(plant.key);
    const wanted = item.querySelector(part);
    (wanted.hidden ? item.querySelector(".name") : wanted).focus({ preventScroll: true });
    return true;
  }

  /// Moves the focus to another plant with the arrow keys, Home and End, to the same kind of button.
  #move(plant, key, target) {
    const place = this.#indexes.get(plant.key);
    const sideways = this.#view === "cards" ? 1 : 0;
    const steps = { ArrowLeft: -sideways, ArrowRight: sideways, ArrowUp: -this.#columns, ArrowDown: this.#columns };
    const ends = { Home: 0, End: this.#plants.length - 1 };
    const next = ends[key] ?? (steps[key] ? place + steps[key] : place);
    if (next === place || next < 0 || next >= this.#plants.length) return false;
    return this.focusAt(next, target.closest(".delete") ? ".delete" : ".name");
  }

  #plantAt(target) {
    const item = target.closest("[data-key]");
    return item && this.#plants[this.#indexes.get(item.dataset.key)];
  }

  #build(view) {
    this.#view = view;
    this.#items.clear();
    this.#host.replaceChildren(view === "cards" ? cards() : table());
    this.#canvas = this.#host.querySelector(".canvas");
  }

  /// Computes the layout from the size of the page.
  #measure() {
    if (!this.#canvas) return;
    const { height, gap, narrowest } = SHAPES[this.#view];
    const unit = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const width = this.#canvas.clientWidth;
    this.#columns = Math.max(1, Math.floor((width / unit + gap) / (narrowest + gap)));
    // Wide pages get wider cards before they get more of them.
    if (this.#columns > 2) this.#columns = Math.max(2, Math.floor((width / unit + gap) / (narrowest * 1.4 + gap)));
    this.#rowHeight = (height + gap) * unit;
    const rows = Math.ceil(this.#plants.length / this.#columns);
    this.#canvas.style.height = `${Math.max(0, rows * this.#rowHeight - gap * unit)}px`;
    this.#host.style.setProperty("--columns", String(this.#columns));
    this.#paint();
  }

  /// Renders the visible plants, and the one that has the focus even if it is not visible.
  #paint(wanted) {
    cancelAnimationFrame(this.#due);
    this.#due = 0;
    if (!this.#canvas) return;
    const above = -this.#canvas.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(above / this.#rowHeight) - EXTRA_ROWS) * this.#columns;
    const end = (Math.ceil((above + innerHeight) / this.#rowHeight) + EXTRA_ROWS) * this.#columns;
    const places = new Set();
    for (let place = first; place < Math.min(end, this.#plants.length); place += 1) places.add(place);
    for (const key of [this.focusedKey, wanted?.key]) if (this.#indexes.has(key)) places.add(this.#indexes.get(key));
    this.#place([...places].sort((one, other) => one - other).map((place) => this.#plants[place]));
  }

  #place(plants) {
    const keys = new Set(plants.map(({ key }) => key));
    for (const [key, item] of this.#items) {
      if (keys.has(key)) continue;
      item.remove();
      this.#items.delete(key);
    }
    let next = this.#canvas.firstElementChild;
    for (const plant of plants) {
      let item = this.#items.get(plant.key);
      if (!item) {
        item = itemOf(plant, SHAPES[this.#view].template);
        this.#items.set(plant.key, item);
      }
      this.#settle(item, this.#indexes.get(plant.key));
      this.#allow(item, this.#canDelete(plant));
      // In the order of the list, for the Tab key and for screen readers.
      if (item === next) next = item.nextElementSibling;
      else this.#canvas.insertBefore(item, next);
    }
  }

  /// Shows or hides the delete button; the focus stays with the plant.
  #allow(item, canDelete) {
    const button = item.querySelector(".delete");
    if (!canDelete && button === document.activeElement) item.querySelector(".name").focus({ preventScroll: true });
    button.hidden = !canDelete;
  }

  #settle(item, place) {
    const column = place % this.#columns;
    const row = Math.floor(place / this.#columns);
    item.style.setProperty("--column", String(column));
    item.style.top = `${row * this.#rowHeight}px`;
    if (this.#view === "cards") {
      item.setAttribute("aria-posinset", String(place + 1));
      item.setAttribute("aria-setsize", String(this.#plants.length));
    } else {
      item.setAttribute("aria-rowindex", String(place + 2));
    }
  }
}

function cards() {
  const frame = document.createElement("div");
  const list = document.createElement("ul");
  list.className = "cards canvas";
  // Safari does not expose a list without bullets as a list.
  list.setAttribute("role", "list");
  frame.append(list);
  return frame;
}

function table() {
  const frame = document.createElement("div");
  frame.className = "table";
  frame.setAttribute("role", "table");
  frame.setAttribute("aria-label", "Plants");
  const head = document.createElement("div");
  head.className = "row head";
  head.setAttribute("role", "row");
  head.setAttribute("aria-rowindex", "1");
  for (const title of ["Name", "Tag", "Owner", "Id", "Actions"]) {
    const cell = document.createElement("div");
    cell.className = title === "Owner" ? "cell owner-cell" : "cell";
    cell.setAttribute("role", "columnheader");
    cell.textContent = title;
    head.append(cell);
  }
  const body = document.createElement("div");
  body.className = "canvas";
  body.setAttribute("role", "rowgroup");
  frame.append(head, body);
  return frame;
}

function itemOf(plant, template) {
  const item = document.getElementById(template).content.firstElementChild.cloneNode(true);
  item.dataset.key = plant.key;
  item.style.setProperty("--tint", String(hueOf(plant.tag)));
  item.querySelector(".drawing").append(drawingOf(plant));
  item.querySelector(".name").textContent = plant.name;
  item.querySelector(".tag").textContent = plant.tag ?? "";
  item.querySelector(".owner").textContent = plant.owner;
  item.querySelector(".id").textContent = plant.id;
  item.querySelector(".delete").setAttribute("aria-label", `Delete ${plant.name}`);
  return item;
}
