// Thousands of plants, of which the page holds those in sight: what is scrolled past is taken out again.

import { drawingOf, hueOf } from "./drawing.js";

/// In units of the page's font size, so that larger text gets larger cards.
const SHAPES = {
  cards: { height: 14.75, gap: 1, narrowest: 9.25, template: "card-template" },
  table: { height: 3.75, gap: 0, narrowest: Infinity, template: "row-template" },
};
/// Rows kept ready above and below what is in sight.
const SPARE = 3;

export class PlantList {
  #host;
  #view = null;
  #canvas = null;
  #plants = [];
  #places = new Map();
  /// What is on the page, by the plant's key.
  #items = new Map();
  #canDelete = () => true;
  #columns = 1;
  #rowHeight = 1;
  #due = 0;

  /// `onOpen` and `onDelete` get the plant whose button was pressed.
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

  /// Shows these plants, in this order; `canDelete` says which of them get a button for it.
  show(plants, { view, owners, canDelete }) {
    this.#canDelete = canDelete;
    const isNew = view !== this.#view;
    if (isNew) this.#build(view);
    const same = !isNew && plants.length === this.#plants.length && plants.every((plant, place) => plant === this.#plants[place]);
    this.#host.classList.toggle("with-owners", owners);
    if (view === "table") this.#canvas.parentElement.setAttribute("aria-rowcount", String(plants.length + 1));
    if (same) return this.#paint();
    this.#plants = plants;
    this.#places = new Map(plants.map((plant, place) => [plant.key, place]));
    this.#measure();
  }

  /// Forgets all plants, and takes them off the page.
  clear() {
    this.#view = this.#canvas = null;
    this.#plants = [];
    this.#places.clear();
    this.#host.replaceChildren();
  }

  /// The key of the plant that has the keyboard.
  get focusedKey() {
    return document.activeElement?.closest?.("[data-key]")?.dataset.key;
  }

  /// Where a plant is in what is shown; -1 if it is not.
  placeOf(plant) {
    return this.#places.get(plant.key) ?? -1;
  }

  /// Brings the plant at this place into sight, and the keyboard to a part of it.
  focusAt(place, part = ".name") {
    const plant = this.#plants[Math.max(0, Math.min(place, this.#plants.length - 1))];
    if (!plant) return false;
    const row = Math.floor(this.#places.get(plant.key) / this.#columns);
    const bottom = this.#canvas.getBoundingClientRect().top + (row + 1) * this.#rowHeight;
    // The first row brings along what stands above it.
    const top = row === 0 ? this.#host.getBoundingClientRect().top : bottom - this.#rowHeight;
    // What sticks to the upper edge must not cover it.
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

  /// Arrow keys go from plant to plant and stay in the column of buttons they are in.
  #move(plant, key, target) {
    const place = this.#places.get(plant.key);
    const sideways = this.#view === "cards" ? 1 : 0;
    const steps = { ArrowLeft: -sideways, ArrowRight: sideways, ArrowUp: -this.#columns, ArrowDown: this.#columns };
    const ends = { Home: 0, End: this.#plants.length - 1 };
    const next = ends[key] ?? (steps[key] ? place + steps[key] : place);
    if (next === place || next < 0 || next >= this.#plants.length) return false;
    return this.focusAt(next, target.closest(".delete") ? ".delete" : ".name");
  }

  #plantAt(target) {
    const item = target.closest("[data-key]");
    return item && this.#plants[this.#places.get(item.dataset.key)];
  }

  #build(view) {
    this.#view = view;
    this.#items.clear();
    this.#host.replaceChildren(view === "cards" ? cards() : table());
    this.#canvas = this.#host.querySelector(".canvas");
  }

  /// Takes the measures of the page; the rest follows from them.
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

  /// Puts on the page what is in sight, and what has the keyboard even if it is not.
  #paint(wanted) {
    cancelAnimationFrame(this.#due);
    this.#due = 0;
    if (!this.#canvas) return;
    const above = -this.#canvas.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(above / this.#rowHeight) - SPARE) * this.#columns;
    const end = (Math.ceil((above + innerHeight) / this.#rowHeight) + SPARE) * this.#columns;
    const places = new Set();
    for (let place = first; place < Math.min(end, this.#plants.length); place += 1) places.add(place);
    for (const key of [this.focusedKey, wanted?.key]) if (this.#places.has(key)) places.add(this.#places.get(key));
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
      this.#settle(item, this.#places.get(plant.key));
      this.#allow(item, this.#canDelete(plant));
      // In the order of the list, for the Tab key and for screen readers.
      if (item === next) next = item.nextElementSibling;
      else this.#canvas.insertBefore(item, next);
    }
  }

  /// Shows or hides the button that deletes; the keyboard stays with the plant.
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
  // Without its bullets Safari takes it for no list.
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
  item.querySelector(".owner").textContent = plant.owner ?? "you";
  item.querySelector(".id").textContent = plant.id;
  item.querySelector(".delete").setAttribute("aria-label", `Delete ${plant.name}`);
  return item;
}
