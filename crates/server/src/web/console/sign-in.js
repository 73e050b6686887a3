// Signing in with a token, which is stored for this tab and nowhere else.

import { showMessage } from "./dialogs.js";
import { drawingOf } from "./drawing.js";
import { load, remove, store } from "./storage.js";
import { tokenError, tokenIn } from "./token.js";

const TOKEN_KEY = "plantstore-token";
/// Names of the plants drawn behind the form.
const BED = ["Monstera", "Saguaro", "Boston fern", "Pilea", "Dahlia", "Aloe", "Lemon", "Echeveria", "Olive"];

const REJECTED = "The server rejected this token: it is unknown there, or it has expired or was revoked.";
const NO_LONGER_VALID = "Your token worked in this tab and no longer does: it has expired or was revoked. Ask the operator of this service for a new one.";

const byId = (id) => document.getElementById(id);

export class SignIn {
  #onToken;
  /// The token that was submitted and not accepted yet.
  #submitted = null;

  /// `onToken` is called with the token, and resolves when the server has accepted or rejected it.
  constructor(onToken) {
    this.#onToken = onToken;
    byId("sign-in").querySelector(".bed").append(...BED.map((name) => drawingOf({ name, tag: name })));
    byId("show-token").addEventListener("click", () => this.#reveal(byId("token").type === "password"));
    byId("token").addEventListener("input", () => this.#mark(""));
    byId("sign-in-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /// Signs in with the stored token of this tab, if there is one.
  start() {
    const token = load(TOKEN_KEY);
    if (token) this.#onToken(token);
    else this.show();
  }

  /// Removes the stored token and asks for one.
  show(reason = "") {
    this.#submitted = null;
    remove(TOKEN_KEY);
    byId("token").value = "";
    this.#mark("");
    this.#reveal(false);
    this.#ask(reason);
  }

  /// Asks again after the server has rejected the token. A token that was just entered stays in the field.
  reject() {
    if (this.#submitted === null) return this.show(NO_LONGER_VALID);
    this.#submitted = null;
    this.#mark(REJECTED);
    this.#ask("");
  }

  /// Stores the accepted token and hides the form.
  hide() {
    if (this.#submitted !== null) store(TOKEN_KEY, this.#submitted);
    this.#submitted = null;
    byId("sign-in").hidden = true;
    byId("token").value = "";
    this.#wait(false);
  }

  /// Shows the failure that is being retried while the token is checked.
  showRetry(words) {
    if (!byId("sign-in").hidden) showMessage(byId("sign-in-reason"), words);
  }

  #ask(reason) {
    this.#wait(false);
    showMessage(byId("sign-in-reason"), reason);
    byId("sign-in").hidden = false;
    byId("token").focus();
  }

  #mark(error) {
    byId("token-error").textContent = error;
    if (error) byId("token").setAttribute("aria-invalid", "true");
    else byId("token").removeAttribute("aria-invalid");
  }

  #reveal(shown) {
    byId("token").type = shown ? "text" : "password";
    byId("show-token").setAttribute("aria-pressed", String(shown));
  }

  #wait(waits) {
    byId("sign-in-button").setAttribute("aria-disabled", String(waits));
    byId("sign-in-button").textContent = waits ? "Looking for your plants…" : "Sign in";
  }

  async #submit() {
    if (byId("sign-in-button").getAttribute("aria-disabled") === "true") return;
    const token = tokenIn(byId("token").value);
    const error = tokenError(token);
    this.#mark(error);
    showMessage(byId("sign-in-reason"), "");
    if (error) return byId("token").focus();
    this.#wait(true);
    this.#submitted = token;
    await this.#onToken(token);
  }
}
