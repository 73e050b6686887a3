// Signing in with a token, which is kept for this tab and nowhere else.

import { tell } from "./dialogs.js";
import { drawingOf } from "./drawing.js";
import { forget, keep, recall } from "./storage.js";

const TOKEN_KEY = "plantstore-token";
/// A few names whose drawings go well together.
const BED = ["Monstera", "Saguaro", "Boston fern", "Pilea", "Dahlia", "Aloe", "Lemon", "Echeveria", "Olive"];

const byId = (id) => document.getElementById(id);

export class SignIn {
  #onToken;

  /// `onToken` gets the token and resolves when it is known whether it works.
  constructor(onToken) {
    this.#onToken = onToken;
    byId("sign-in").querySelector(".bed").append(...BED.map((name) => drawingOf({ name, tag: name })));
    byId("show-token").addEventListener("click", () => this.#reveal(byId("token").type === "password"));
    byId("sign-in-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /// Goes in with the token of this tab, if there is one.
  start() {
    const token = recall(TOKEN_KEY);
    if (token) this.#onToken(token);
    else this.show("");
  }

  /// Forgets the token and asks for one.
  show(reason) {
    forget(TOKEN_KEY);
    this.#reveal(false);
    this.#wait(false);
    byId("token").value = "";
    tell(byId("sign-in-reason"), reason);
    byId("sign-in").hidden = false;
    byId("token").focus();
  }

  hide() {
    byId("sign-in").hidden = true;
    byId("token").value = "";
    this.#wait(false);
  }

  /// Says what is waited out, to whoever is still at the door.
  tellTrouble(words) {
    if (!byId("sign-in").hidden) tell(byId("sign-in-reason"), words);
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
    const token = byId("token").value.trim();
    const fault = faultOf(token);
    byId("token-error").textContent = fault;
    if (fault) return byId("token").focus();
    tell(byId("sign-in-reason"), "");
    this.#wait(true);
    keep(TOKEN_KEY, token);
    await this.#onToken(token);
  }
}

function faultOf(token) {
  if (token === "") return "Paste a token first.";
  return /^[\x21-\x7e]+$/.test(token) ? "" : "A token is one word of letters, digits and signs: this has something else in it.";
}
