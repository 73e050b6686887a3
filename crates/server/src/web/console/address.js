// The URL and the history of the page. The filter is in the fragment of the URL, which browsers do not send to a server. An open
// dialog has an entry in the history, so that the Back button closes it.

/// Delay of URL changes in milliseconds. Browsers reject too many changes in a short time.
const WRITE_DELAY = 200;

export class Address {
  #onFilter;
  #unwritten = null;
  #timer;
  /// The page is going back in the history, because a dialog was closed.
  #isReturning = false;

  /// `onFilter` is called with the filter when the user navigates to another URL of this page.
  constructor(onFilter) {
    this.#onFilter = onFilter;
    addEventListener("popstate", () => this.#onPopState());
    // The page was reloaded with an open dialog.
    if (history.state?.isDialog) this.#return();
  }

  /// Returns the filter in the URL.
  read() {
    const fields = new URLSearchParams(location.hash.slice(1));
    return { query: fields.get("q") ?? "", tag: fields.get("tag"), owner: fields.get("owner") };
  }

  write(filter) {
    this.#unwritten = filter;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), WRITE_DELAY);
  }

  /// Opens a dialog that the Back button closes.
  open(dialog) {
    dialog.showModal();
    dialog.addEventListener("close", () => this.#onClose(), { once: true });
    this.#enter();
  }

  /// Writes a delayed change at once.
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
      // Another dialog was opened before the browser had gone back.
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
