// Virtual list: of thousands of plants, only the visible ones are in the page.

import { drawingOf, hueOf } from "./drawing.js";
import { Selection } from "./selection.js";

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
  #selection;
  /// The plant that has stayed in its place, and the position of the page then.
  #kept = null;
  #columns = 1;
  #rowHeight = 1;
  #due = 0;

  /// `onOpen` and `onEdit` are called with a plant, `onDelete` with plants, and `onSelect` when the selection has changed.
  constructor(host, { onOpen, onEdit, onDelete, onSelect }) {
    this.#host = host;
    this.#selection = new Selection(() => {
      this.#paint();
      onSelect(this.#selection);
    });
    const later = () => {
      this.#due ||= requestAnimationFrame(() => this.#paint());
    };
    addEventListener("scroll", later, { passive: true });
    new ResizeObserver(() => this.#measure()).observe(host);
    host.addEventListener("click", (event) => {
      const plant = this.#plantAt(event.target);
      if (plant && event.target.closest(".delete")) onDelete([plant]);
      else if (plant && !this.#selectAt(plant, event)) onOpen(plant);
    });
    // Shift and a click select plants, not text.
    host.addEventListener("mousedown", (event) => {
      if (!event.shiftKey) return;
      event.preventDefault();
      event.target.closest("[data-key]")?.querySelector(".name").focus({ preventScroll: true });
    });
    host.addEventListener("keydown", (event) => {
      const plant = this.#plantAt(event.target);
      if (!plant || event.altKey) return;
      if (event.ctrlKey || event.metaKey) {
        if (event.key !== "a") return;
        this.selectAll();
      } else if (event.key === "Delete") {
        // A key that is held down deletes once.
        event.repeat || onDelete(this.#selection.size > 0 ? this.selected : [plant]);
      } else if (event.key === "x") this.#selection.toggle(plant.key, this.#canDelete(plant));
      else if (event.key === "e") onEdit(plant);
      else if (!this.#move(plant, event)) return;
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
    // What is not shown any more is not deleted with the rest.
    this.#selection.keep((key) => this.#indexes.has(key));
  }

  /// Removes all plants.
  clear() {
    this.#selection.end();
    this.#view = this.#canvas = null;
    this.#plants = [];
    this.#indexes.clear();
    this.#host.replaceChildren();
  }

  /// The key of the plant that has the focus.
  get focusedKey() {
    return document.activeElement?.closest?.("[data-key]")?.dataset.key;
  }

  get selection() {
    return this.#selection;
  }

  /// The selected plants, in the order of the list.
  get selected() {
    return this.#plants.filter(({ key }) => this.#selection.has(key));
  }

  selectAll() {
    this.#selection.add(this.#plants.filter((plant) => this.#canDelete(plant)).map(({ key }) => key));
  }

  /// Runs a change of the list that the user has not asked for: the plant that has the focus, or else the first visible one, stays in its
  /// place. At the upper end of the page nothing needs to be kept, as with the scroll anchoring of browsers.
  changeInPlace(change) {
    const { focusedKey } = this;
    const part = document.activeElement?.closest?.(".delete") ? ".delete" : ".name";
    // The same plant as before, or else a row of cards that gets one more with every change would drift.
    const wanted = focusedKey ?? (this.#kept?.scrollY === scrollY ? this.#kept.key : null);
    const [before, place] = [scrollY > 0 || focusedKey ? this.#visible(wanted) : [], this.#indexes.get(focusedKey)];
    change();
    const kept = before.find(({ key }) => this.#indexes.has(key));
    if (kept) scrollBy({ top: this.#topOf(this.#indexes.get(kept.key)) - kept.top, behavior: "instant" });
    this.#kept = kept ? { key: kept.key, scrollY } : null;
    this.#paint();
    // The plant that had the focus is gone.
    if (focusedKey && document.activeElement === document.body) this.focusAt(place, part);
  }

  /// Returns the visible plants, each with its `key` and `top`, the wanted one first.
  #visible(wanted) {
    if (!this.#canvas) return [];
    const edge = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0;
    const all = [...this.#items.keys()].filter((key) => this.#indexes.has(key)).sort((one, other) => this.#indexes.get(one) - this.#indexes.get(other));
    const places = all.map((key) => ({ key, top: this.#topOf(this.#indexes.get(key)) }));
    const visible = places.filter(({ top }) => top + this.#rowHeight > edge && top < innerHeight);
    return visible.sort((one, other) => (other.key === wanted) - (one.key === wanted));
  }

  /// Returns the distance of a plant from the upper edge of the window.
  #topOf(place) {
    return this.#canvas.getBoundingClientRect().top + Math.floor(place / this.#columns) * this.#rowHeight;
  }

  /// Returns the index of a plant among those shown; -1 if it is not shown.
  indexOf(plant) {
    return this.#indexes.get(plant.key) ?? -1;
  }

  /// Scrolls to the plant at this index and focuses a part of it.
  focusAt(place, part = ".name") {
    const plant = this.#plants[Math.max(0, Math.min(place, this.#plants.length - 1))];
    if (!plant) return false;
    const index = this.#indexes.get(plant.key);
    const bottom = this.#topOf(index) + this.#rowHeight;
    // For the first row, the headings above it are shown, too.
    const top = index < this.#columns ? this.#host.getBoundingClientRect().top : this.#topOf(index);
    // The sticky controls must not cover it, nor the bar of the selection.
    const { scrollPaddingTop, scrollPaddingBottom } = getComputedStyle(document.documentElement);
    const edge = parseFloat(scrollPaddingTop) || 0;
    const end = innerHeight - (parseFloat(scrollPaddingBottom) || 0);
    if (top < edge || bottom > end) scrollBy({ top: top < edge ? top - edge : bottom - end, behavior: "instant" });
    this.#paint(plant);
    const { item } = this.#items.get(plant.key);
    const wanted = item.querySelector(part);
    (wanted.hidden ? item.querySelector(".name") : wanted).focus({ preventScroll: true });
    return true;
  }

  /// Changes the selection after a click; returns false if the click does not select.
  #selectAt(plant, { shiftKey, ctrlKey, metaKey }) {
    const selection = this.#selection;
    if (shiftKey) this.#selectRange(this.#indexes.get(selection.start) ?? this.indexOf(plant), this.indexOf(plant));
    else if (selection.isOn || ctrlKey || metaKey) selection.toggle(plant.key, this.#canDelete(plant));
    return shiftKey || selection.isOn;
  }

  /// Selects the plants between two indexes, in any order. The first is where the next range starts, too.
  #selectRange(from, to) {
    const range = this.#plants.slice(Math.min(from, to), Math.max(from, to) + 1).filter((plant) => this.#canDelete(plant));
    this.#selection.setRange(this.#plants[from].key, range.map(({ key }) => key));
  }

  /// Moves the focus to another plant with the arrow keys, Home and End, to the same kind of button. With Shift, the plants up to that one
  /// are selected.
  #move(plant, { key, target, shiftKey }) {
    const place = this.#indexes.get(plant.key);
    const sideways = this.#view === "cards" ? 1 : 0;
    const steps = { ArrowLeft: -sideways, ArrowRight: sideways, ArrowUp: -this.#columns, ArrowDown: this.#columns };
    const ends = { Home: 0, End: this.#plants.length - 1 };
    const next = ends[key] ?? (steps[key] ? place + steps[key] : place);
    if (next === place || next < 0 || next >= this.#plants.length) return false;
    if (shiftKey) this.#selectRange(this.#indexes.get(this.#selection.start) ?? place, next);
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
    for (const [key, { item }] of this.#items) {
      if (keys.has(key)) continue;
      item.remove();
      this.#items.delete(key);
    }
    let next = this.#canvas.firstElementChild;
    for (const plant of plants) {
      let { item, shown } = this.#items.get(plant.key) ?? {};
      item ??= document.getElementById(SHAPES[this.#view].template).content.firstElementChild.cloneNode(true);
      if (shown !== plant) fill(item, plant);
      this.#items.set(plant.key, { item, shown: plant });
      this.#settle(item, this.#indexes.get(plant.key));
      this.#allow(item, plant);
      // In the order of the list, for the Tab key and for screen readers.
      if (item === next) next = item.nextElementSibling;
      else this.#canvas.insertBefore(item, next);
    }
  }

  /// Shows or hides the delete button, and the checkbox while plants are selected; the focus stays with the plant.
  #allow(item, plant) {
    const [button, pick, canDelete] = [item.querySelector(".delete"), item.querySelector(".pick"), this.#canDelete(plant)];
    const { isOn } = this.#selection;
    pick.checked = this.#selection.has(plant.key);
    item.classList.toggle("picked", pick.checked);
    for (const [control, isShown] of [[button, canDelete && !isOn], [pick, canDelete && isOn]]) {
      if (!isShown && control === document.activeElement) item.querySelector(".name").focus({ preventScroll: true });
      control.hidden = !isShown;
    }
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

/// Shows a plant in its card or row.
function fill(item, plant) {
  item.dataset.key = plant.key;
  item.style.setProperty("--tint", String(hueOf(plant.tag)));
  item.querySelector(".drawing").replaceChildren(drawingOf(plant));
  item.querySelector(".name").textContent = plant.name;
  item.querySelector(".tag").textContent = plant.tag ?? "";
  item.querySelector(".owner").textContent = plant.owner;
  item.querySelector(".id").textContent = plant.id;
  item.querySelector(".delete").setAttribute("aria-label", `Delete ${plant.name}`);
  item.querySelector(".pick").setAttribute("aria-label", `Select ${plant.name}`);
}
