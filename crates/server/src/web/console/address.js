// The URL and the history of the page. The fragment of the URL, which browsers do not send to a server, has the filter of the plants,
// or `access` for the Access page. An open dialog has an entry in the history, so that the Back button closes it.

/// Delay of URL changes in milliseconds. Browsers reject too many changes in a short time.
const WRITE_DELAY = 200;
const ACCESS = "#access";

export class Address {
  #onNavigate;
  #unwritten = null;
  #timer;
  /// The page is going back in the history, because a dialog was closed.
  #isReturning = false;

  /// `onNavigate` is called with the result of `read` when the user navigates to another URL of this page.
  constructor(onNavigate) {
    this.#onNavigate = onNavigate;
    addEventListener("popstate", () => this.#onPopState());
    // The page was reloaded with an open dialog.
    if (history.state?.isDialog) this.#return();
  }

  /// Returns the page in the URL, `plants` or `access`, and the filter of the plants.
  read() {
    if (location.hash === ACCESS) return { page: "access" };
    const fields = new URLSearchParams(location.hash.slice(1));
    return { page: "plants", filter: { query: fields.get("q") ?? "", tag: fields.get("tag"), owner: fields.get("owner") } };
  }

  write(filter) {
    this.#unwritten = filter;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.flush(), WRITE_DELAY);
  }

  /// Goes to the plants that match the filter, or to the Access page without one.
  go(filter = null) {
    this.flush();
    const hash = filter ? fragmentOf(filter) : ACCESS;
    if (location.hash !== hash) history.pushState(null, "", location.pathname + location.search + hash);
    this.#onNavigate(this.read());
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
    const hash = fragmentOf(this.#unwritten);
    this.#unwritten = null;
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
    if (dialog && !history.state?.isDialog) {
      // A dialog that refuses to be cancelled stays open.
      if (dialog.dispatchEvent(new Event("cancel", { cancelable: true }))) dialog.close();
      else this.#enter();
    }
    this.#onNavigate(this.read());
  }
}

function fragmentOf({ query, tag, owner }) {
  const fields = new URLSearchParams();
  for (const [name, value] of [["q", query || null], ["tag", tag], ["owner", owner]]) if (value !== null) fields.set(name, value);
  return fields.size > 0 ? `#${fields}` : "";
}

function openDialog() {
  return document.querySelector("dialog[open]");
}
