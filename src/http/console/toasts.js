// Short messages at the edge of the page. One that can be undone waits as long as somebody is at it.

const SECONDS = 10;
/// More than these would cover the page: the oldest ends early.
const MOST = 3;

export class Toasts {
  #region;
  #onFocusLost;
  #open = [];

  /// `onFocusLost` puts the keyboard somewhere when the message that had it is gone.
  constructor(region, onFocusLost) {
    this.#region = region;
    this.#onFocusLost = onFocusLost;
  }

  /// Shows a message. `onUndo` gives it a button; `onEnd` is called when its time is over without that.
  show(text, { onUndo, onEnd = () => {}, isError = false } = {}) {
    const toast = document.getElementById("toast-template").content.firstElementChild.cloneNode(true);
    toast.querySelector("p").textContent = text;
    if (isError) toast.classList.add("error");
    const close = (then) => {
      const place = this.#open.indexOf(shown);
      if (place < 0) return;
      this.#open.splice(place, 1);
      clearTimeout(timer);
      const hadFocus = toast.contains(document.activeElement);
      toast.remove();
      then();
      if (hadFocus && document.activeElement === document.body) this.#onFocusLost();
    };
    const shown = { end: () => close(onEnd), undo: onUndo && (() => close(onUndo)), drop: () => close(() => {}) };
    let timer;
    const wait = () => {
      clearTimeout(timer);
      timer = setTimeout(shown.end, SECONDS * 1_000);
    };
    // Whoever reads it, or is about to press its button, is not hurried.
    for (const stay of ["pointerenter", "focusin"]) toast.addEventListener(stay, () => clearTimeout(timer));
    for (const leave of ["pointerleave", "focusout"]) toast.addEventListener(leave, wait);
    toast.querySelector(".dismiss").addEventListener("click", shown.end);
    const undo = toast.querySelector(".undo");
    undo.hidden = !onUndo;
    undo.addEventListener("click", () => shown.undo());
    this.#region.append(toast);
    this.#open.push(shown);
    if (this.#open.length > MOST) this.#open[0].end();
    wait();
  }

  /// Undoes the newest that can be; says whether there was one.
  undoLast() {
    const last = this.#open.findLast(({ undo }) => undo);
    last?.undo();
    return Boolean(last);
  }

  /// Takes all away as if they had never been.
  clear() {
    for (const { drop } of [...this.#open]) drop();
  }

  /// Ends the time of all.
  endAll() {
    for (const shown of [...this.#open]) shown.end();
  }
}
