// The address and the history of the page. The filter is in the fragment of the address, which a browser sends to no server;
// an open dialog has an entry in the history, so that Back closes it.

/// Browsers reject too many changes of the address in a short time.
const WRITE_DELAY = 200;

export class Address {
  #onFilter;
  #unwritten = null;
  #timer;
  /// An entry is being left because its dialog was closed.
  #isReturning = false;

  /// `onFilter` gets the filter when the person goes to another address of this page.
  constructor(onFilter) {
    this.#onFilter = onFilter;
    addEventListener("popstate", () => this.#onPopState());
    // The page was reloaded with an open dialog.
    if (history.state?.isDialog) this.#return();
  }

  /// Returns the filter that the address holds.
  read() {
    const fields = new URLSearchParams(location.hash.slice(1));
    return { query: fields.get("q") ?? "", tag: fields.get("tag"), owner: fields.get("owner") };
  }

  write(filter) {
    this.#unwritten = filter;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), WRITE_DELAY);
  }

  /// Opens a dialog that Back closes.
  open(dialog) {
    dialog.showModal();
    dialog.addEventListener("close", () => this.#onClose(), { once: true });
    this.#enter();
  }

  /// Writes at once what is still to be written.
  flush() {
    if (!this.#unwritten || this.#isReturning) return;
    const { query, tag, owner } = this.#unwritten;
    this.#unwritten = null;
    const fields = new URLSearchParams();
    for (const [name, value] of [["q", query || null], ["tag", tag], ["owner", owner]]) if (value !== null) fields.set(name, value);
    const hash = fields.size > 0 ? `#${fields}` : "";
    if (location.hash !== hash) history.replaceState(history.state, "", location.pathname + location.search + hash);
  }

  #enter() {
    if (this.#isReturning || history.state?.isDialog) return;
    this.flush();
    history.pushState({ isDialog: true }, "");
  }

  #onClose() {
    if (!openDialog() && history.state?.isDialog && !this.#isReturning) this.#return();
  }

  #return() {
    this.#isReturning = true;
    history.back();
  }

  #onPopState() {
    const dialog = openDialog();
    if (this.#isReturning) {
      this.#isReturning = false;
      this.flush();
      // Another one was opened before the browser was back.
      if (dialog) this.#enter();
      return;
    }
    if (!history.state?.isDialog) dialog?.close();
    this.#onFilter(this.read());
  }
}

function openDialog() {
  return document.querySelector("dialog[open]");
}
