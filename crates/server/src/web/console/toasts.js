// Toasts: short messages at the edge of the page. Every action can be undone for the same time, however many messages there are,
// because actions of one kind share a message, such as "6 plants deleted."

import { count } from "./text.js";

const SECONDS = 10;
/// Maximum number of messages without an undo button; beyond it, the oldest is removed.
const MESSAGES_MAX = 3;

/// A message on the page. Its timer is stopped while the pointer or the focus is on it.
class Toast {
  #element;
  #onFocusLost;
  #isHovered = false;
  #isFocused = false;

  constructor(region, { isError = false, onAttention, onDismiss, onUndo, onFocusLost }) {
    this.#onFocusLost = onFocusLost;
    this.#element = document.getElementById("toast-template").content.firstElementChild.cloneNode(true);
    if (isError) this.#element.classList.add("error");
    const listen = (event, change) => {
      this.#element.addEventListener(event, () => {
        change();
        onAttention();
      });
    };
    listen("pointerenter", () => (this.#isHovered = true));
    listen("pointerleave", () => (this.#isHovered = false));
    listen("focusin", () => (this.#isFocused = true));
    listen("focusout", () => (this.#isFocused = false));
    this.#element.querySelector(".dismiss").addEventListener("click", onDismiss);
    this.#element.querySelector(".undo").addEventListener("click", onUndo);
    region.append(this.#element);
  }

  get hasAttention() {
    return this.#isHovered || this.#isFocused;
  }

  write(text, undo = "") {
    this.#element.querySelector("p").textContent = text;
    const button = this.#element.querySelector(".undo");
    button.hidden = undo === "";
    button.textContent = undo;
  }

  /// Removes the toast, calls `then`, and moves the focus elsewhere if it was here.
  remove(then) {
    const hadFocus = this.#element.contains(document.activeElement);
    this.#element.remove();
    then();
    if (hadFocus && document.activeElement === document.body) this.#onFocusLost();
  }
}

/// Actions of one kind that can still be undone. Each has its own timer.
class UndoGroup {
  #kind;
  #toast;
  #onEmpty;
  #pending = [];
  /// Number of plants whose time to undo is over.
  #ended = 0;

  constructor(region, kind, { onEmpty, onFocusLost }) {
    this.#kind = kind;
    this.#onEmpty = onEmpty;
    const onAttention = () => this.#pending.forEach((action) => this.#wait(action));
    this.#toast = new Toast(region, { onAttention, onFocusLost, onDismiss: () => this.end(), onUndo: () => this.#undo([...this.#pending]) });
  }

  add(action) {
    this.#pending.push(action);
    this.#wait(action);
    this.#write();
  }

  get newest() {
    return this.#pending.at(-1)?.serial ?? -1;
  }

  undoNewest() {
    this.#undo([this.#pending.at(-1)]);
  }

  /// Ends the time to undo of all actions.
  end() {
    const actions = this.#pending.splice(0);
    this.#after(actions, () => actions.forEach(({ onEnd }) => onEnd()));
  }

  drop() {
    this.#after(this.#pending.splice(0), () => {});
  }

  #undo(actions) {
    this.#pending = this.#pending.filter((action) => !actions.includes(action));
    this.#after(actions, () => actions.reverse().forEach(({ onUndo }) => onUndo()));
  }

  #after(actions, then) {
    for (const { timer } of actions) clearTimeout(timer);
    if (this.#pending.length > 0) {
      this.#write();
      return then();
    }
    this.#onEmpty();
    this.#toast.remove(then);
  }

  #wait(action) {
    clearTimeout(action.timer);
    if (this.#toast.hasAttention) return;
    action.timer = setTimeout(() => {
      this.#pending.splice(this.#pending.indexOf(action), 1);
      this.#ended += action.size;
      this.#after([action], action.onEnd);
    }, SECONDS * 1_000);
  }

  #write() {
    const left = this.#pending.reduce((sum, { size }) => sum + size, 0);
    if (this.#ended > 0) {
      this.#toast.write(`${count(this.#ended + left, "plant")} ${this.#kind}.`, left === 1 ? "Undo the last one" : `Undo the last ${left}`);
    } else if (this.#pending.length > 1) this.#toast.write(`${count(left, "plant")} ${this.#kind}.`, "Undo all");
    else this.#toast.write(this.#pending[0].text, "Undo");
  }
}

export class Toasts {
  #region;
  #onFocusLost;
  /// Groups by kind.
  #groups = new Map();
  #messages = [];
  #serial = 0;

  /// `onFocusLost` is called when a message that has the focus is removed.
  constructor(region, onFocusLost) {
    this.#region = region;
    this.#onFocusLost = onFocusLost;
  }

  show(text, { isError = false } = {}) {
    let timer;
    const remove = () => {
      clearTimeout(timer);
      if (!this.#messages.includes(message)) return;
      this.#messages.splice(this.#messages.indexOf(message), 1);
      toast.remove(() => {});
    };
    const wait = () => {
      clearTimeout(timer);
      if (!toast.hasAttention) timer = setTimeout(remove, SECONDS * 1_000);
    };
    const toast = new Toast(this.#region, { isError, onAttention: wait, onDismiss: remove, onUndo: () => {}, onFocusLost: this.#onFocusLost });
    const message = { text, remove };
    toast.write(text);
    // A repeated message replaces the earlier one.
    this.#messages.find((earlier) => earlier.text === text)?.remove();
    this.#messages.push(message);
    if (this.#messages.length > MESSAGES_MAX) this.#messages[0].remove();
    wait();
  }

  /// Shows an action on a number of plants, `size`, and offers to undo it. `kind` describes the plants of several such actions, such as
  /// "deleted"; `onEnd` is called when the time to undo is over.
  offerUndo(kind, { text, size = 1, onUndo, onEnd = () => {} }) {
    if (!this.#groups.has(kind)) {
      const onEmpty = () => this.#groups.delete(kind);
      this.#groups.set(kind, new UndoGroup(this.#region, kind, { onEmpty, onFocusLost: this.#onFocusLost }));
    }
    this.#serial += 1;
    this.#groups.get(kind).add({ text, size, onUndo, onEnd, serial: this.#serial });
  }

  /// Undoes the newest action that can be undone; returns false if there is none.
  undoLast() {
    const [group] = [...this.#groups.values()].sort((one, other) => other.newest - one.newest);
    group?.undoNewest();
    return group !== undefined;
  }

  /// Removes all messages without ending or undoing their actions.
  clear() {
    for (const group of [...this.#groups.values()]) group.drop();
    for (const { remove } of [...this.#messages]) remove();
  }

  /// Ends the time to undo of all actions.
  endAll() {
    for (const group of [...this.#groups.values()]) group.end();
  }
}
