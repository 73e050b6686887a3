// The dialogs of the Access page: a new token, a share, and the confirmation of what cannot be undone.

import { closeOnDemand } from "./dialogs.js";
import { byId, showMessage } from "./dom.js";
import { SCOPES, dateOf } from "./scopes.js";

const DAY = 86_400_000;
/// Lifetimes to choose from, in days, and the one that is preselected.
const LIFETIMES = [[1, "1 day"], [7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "1 year"]];
const LIFETIME_DEFAULT = 90;
/// The longest lifetime of a token that is created with an issuer's token, in days.
const LIFETIME_OF_ISSUER = 90;

/// A dialog with one form whose request runs while the dialog stays open.
class FormDialog {
  #name;
  #open;
  #onSubmit;
  /// Number of times the dialog was opened: a response may arrive when it is open for something else.
  #openCount = 0;

  /// `name` begins the ids of its elements; `onSubmit` sends the request and throws a `Failure`.
  constructor(name, { open, onSubmit }) {
    this.#name = name;
    this.#open = open;
    this.#onSubmit = onSubmit;
    closeOnDemand(this.dialog);
    byId(`${name}-form`).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  get dialog() {
    return byId(`${this.#name}-dialog`);
  }

  open() {
    this.#openCount += 1;
    this.#wait(false);
    this.fail("");
    this.#open(this.dialog);
  }

  fail(message) {
    showMessage(byId(`${this.#name}-error`), message);
  }

  async #submit() {
    if (byId(`${this.#name}-button`).getAttribute("aria-disabled") === "true") return;
    const openCount = this.#openCount;
    const isOpen = () => this.dialog.open && openCount === this.#openCount;
    this.fail("");
    this.#wait(true);
    try {
      await this.#onSubmit(isOpen);
    } catch (failure) {
      if (isOpen()) this.fail(failure.message);
    } finally {
      if (openCount === this.#openCount) this.#wait(false);
    }
  }

  #wait(waits) {
    const button = byId(`${this.#name}-button`);
    // Not `disabled`, which would take the keyboard away from it.
    button.setAttribute("aria-disabled", String(waits));
    button.dataset.label ??= button.textContent;
    button.textContent = waits ? "One moment…" : button.dataset.label;
  }
}

/// Creates a token, and then shows its secret, once.
export class TokenDialog {
  #form;

  /// `open` opens a dialog; `onCreate` is called with the label, the scopes and the expiry, and returns the token with its secret;
  /// `onUnseen` is called with a token whose form was closed meanwhile.
  constructor({ open, onCreate, onUnseen }) {
    const onSubmit = async (isOpen) => {
      const created = await onCreate(this.#token());
      if (isOpen()) this.#showSecret(created.secret, "Copy it to where it is used; if you lose it, revoke it and create another.");
      else onUnseen(created);
    };
    this.#form = new FormDialog("token", { open, onSubmit });
    byId("secret-copy").addEventListener("click", () => copySecret());
    // One press of Escape or of Back must not lose the only copy.
    this.#form.dialog.addEventListener("cancel", (event) => byId("token-form").hidden && event.preventDefault());
    this.#form.dialog.addEventListener("close", () => (byId("secret").textContent = ""));
  }

  /// `token` is that of the user, whose scopes and expiry limit the new one.
  open(token) {
    byId("token-form").reset();
    byId("token-form").hidden = false;
    byId("secret-view").hidden = true;
    byId("token-title").textContent = "New token";
    byId("token-scopes").replaceChildren(...SCOPES.map((scope) => scopeChoice(scope, token)));
    byId("token-scopes-hint").hidden = SCOPES.every(({ name }) => token.scopes.includes(name));
    const [options, chosen] = lifetimes(token);
    byId("token-expiry").replaceChildren(...options);
    byId("token-expiry").value = chosen;
    this.#form.open();
    byId("token-label").focus();
  }

  #token() {
    const scopes = [...byId("token-scopes").querySelectorAll(":checked")].map(({ value }) => value);
    if (scopes.length === 0) throw new Error("Choose at least one thing that the token may do.");
    const label = byId("token-label").value.trim();
    return { ...(label && { label }), scopes, ...expiryOf(byId("token-expiry").value) };
  }

  /// Shows the secret of a token that was created without the form.
  openSecret(secret, hint) {
    this.#form.open();
    this.#showSecret(secret, hint);
  }

  #showSecret(secret, hint) {
    byId("token-form").hidden = true;
    byId("secret-view").hidden = false;
    byId("token-title").textContent = "Copy your new token";
    byId("secret-hint").textContent = `It is shown only now. ${hint}`;
    byId("secret").textContent = secret;
    byId("secret-copy").textContent = "Copy";
    byId("secret-status").textContent = "";
    byId("secret-copy").focus();
  }
}

/// Shares the user's plants with another user.
export class ShareDialog {
  #form;

  /// `open` opens a dialog; `onGrant` is called with the name and the role.
  constructor({ open, onGrant }) {
    const onSubmit = async (isOpen) => {
      const user = byId("share-user").value.trim();
      if (user === "") throw new Error("Write the name of the user to share with.");
      await onGrant(user, new FormData(byId("share-form")).get("role"));
      if (isOpen()) this.#form.dialog.close();
    };
    this.#form = new FormDialog("share", { open, onSubmit });
  }

  open() {
    byId("share-form").reset();
    this.#form.open();
    byId("share-user").focus();
  }
}

/// Asks before something that cannot be undone.
export class ConfirmDialog {
  #form;
  #onConfirm;

  constructor({ open }) {
    const onSubmit = async (isOpen) => {
      await this.#onConfirm();
      if (isOpen()) this.#form.dialog.close();
    };
    this.#form = new FormDialog("confirm", { open, onSubmit });
  }

  /// `action` is the label of the button that confirms.
  open({ title, text, action, onConfirm }) {
    this.#onConfirm = onConfirm;
    byId("confirm-button").dataset.label = action;
    byId("confirm-title").textContent = title;
    byId("confirm-text").textContent = text;
    this.#form.open();
    byId("confirm-dialog").querySelector(".actions [data-close]").focus();
  }
}

function scopeChoice({ name, words, isUsual }, token) {
  const label = document.createElement("label");
  label.className = "check";
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", name: "scope", value: name, disabled: !token.scopes.includes(name) });
  box.checked = isUsual && !box.disabled;
  const scope = document.createElement("code");
  scope.textContent = name;
  label.append(box, words, scope);
  return label;
}

/// Returns the options for the lifetime of a new token, and the value to preselect. No token outlives the one that it is created with.
function lifetimes({ expires_at, issuer }) {
  const limit = issuer !== undefined || !expires_at ? Infinity : new Date(expires_at) - Date.now();
  const most = issuer === undefined ? limit : LIFETIME_OF_ISSUER * DAY;
  const offered = LIFETIMES.filter(([days]) => days * DAY <= most);
  const options = offered.map(([days, words]) => new Option(`${words}, until ${dateOf(Date.now() + days * DAY)}`, days));
  if (limit < LIFETIMES.at(-1)[0] * DAY) options.push(new Option(`Until ${dateOf(expires_at)}, like your own token`, expires_at));
  const isOffered = offered.some(([days]) => days === LIFETIME_DEFAULT);
  return [options, isOffered ? String(LIFETIME_DEFAULT) : options.at(-1).value];
}

/// Returns the expiry for a chosen lifetime. The default is left to the server, whose clock may differ.
function expiryOf(lifetime) {
  if (lifetime === String(LIFETIME_DEFAULT)) return {};
  return { expires_at: /^\d+$/.test(lifetime) ? new Date(Date.now() + Number(lifetime) * DAY).toISOString() : lifetime };
}

/// Copies the secret. Browsers offer the clipboard only with HTTPS or on this machine; elsewhere the secret is selected, to be
/// copied by hand.
async function copySecret() {
  getSelection().selectAllChildren(byId("secret"));
  try {
    await navigator.clipboard.writeText(byId("secret").textContent);
    byId("secret-copy").textContent = "Copied";
    byId("secret-status").textContent = "Copied.";
  } catch {
    byId("secret-status").textContent = "It is selected: copy it with Ctrl+C.";
  }
}
