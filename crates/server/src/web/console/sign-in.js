// Signing in, with the issuer's sign-in page or with a pasted token. The token is stored for this tab and nowhere else.

import { byId, showMessage } from "./dom.js";
import { hasDraft } from "./drafts.js";
import { drawingOf } from "./drawing.js";
import { SignInError, beginSignIn, finishSignIn, forgetSignIn, isSignedInWithIssuer, issuerName, logoutUrl } from "./oidc.js";
import { load, remove, store } from "./storage.js";
import { tokenError, tokenIn } from "./token.js";

const TOKEN_KEY = "plantstore-token";
/// Names of the plants drawn behind the form.
const BED = ["Monstera", "Saguaro", "Boston fern", "Pilea", "Dahlia", "Aloe", "Lemon", "Echeveria", "Olive"];

const REJECTED = "The server rejected this token: it is unknown there, or it has expired or was revoked.";
const NO_LONGER_VALID = "Your token worked in this tab and no longer does: it has expired or was revoked. Ask the operator of this service for a new one.";
const SIGN_IN_EXPIRED = "Your sign-in has expired. Sign in again to go on.";
const DRAFT_KEPT = "What you had typed is kept until then.";
const SIGN_IN_REJECTED = `${issuerName} signed you in, but this service does not accept its token. Tell the operator of this service.`;

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
    // Not removed: a browser supplies a summary of its own to an element without one.
    byId("paste").querySelector("summary").hidden = issuerName === null;
    if (issuerName === null) return;
    byId("issuer").hidden = false;
    byId("paste").open = false;
    byId("sign-in-button").classList.remove("primary");
    byId("issuer-button").addEventListener("click", () => this.#begin());
    // The user has come back from the issuer's page with the Back button.
    addEventListener("pageshow", ({ persisted }) => persisted && this.#wait(false));
  }

  /// Signs in with the issuer's response, if there is one, or with the stored token of this tab.
  start(response) {
    const token = load(TOKEN_KEY);
    // A response without a request does not end a sign-in: every page can link to one.
    if (response && (response.request || !token)) this.#finish(response);
    else if (token) this.#onToken(token);
    else this.show();
  }

  /// Removes the stored token and asks for one.
  show(reason = "") {
    this.#submitted = null;
    remove(TOKEN_KEY);
    forgetSignIn();
    byId("token").value = "";
    this.#mark("");
    this.#reveal(false);
    this.#ask(reason);
  }

  /// Signs out: removes the stored token, and goes to the issuer if that has a session to end.
  leave(reason) {
    const logout = logoutUrl();
    this.show(reason);
    if (logout) location.assign(logout);
  }

  /// Asks again after the server has rejected the token. A token that was just pasted stays in the field.
  reject() {
    const [isWithIssuer, isNew] = [isSignedInWithIssuer(), this.#submitted !== null];
    if (isWithIssuer) return this.show(isNew ? SIGN_IN_REJECTED : withDraft(SIGN_IN_EXPIRED));
    if (!isNew) return this.show(withDraft(NO_LONGER_VALID));
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

  /// Stores a token that replaces the one in use.
  replace(token) {
    store(TOKEN_KEY, token);
  }

  /// Shows the failure that is being retried while the token is checked.
  showRetry(words) {
    if (!byId("sign-in").hidden) showMessage(byId("sign-in-reason"), words);
  }

  #ask(reason) {
    this.#wait(false);
    showMessage(byId("sign-in-reason"), reason);
    byId("sign-in").hidden = false;
    byId(byId("paste").open ? "token" : "issuer-button").focus();
  }

  #mark(error) {
    byId("paste-error").textContent = error;
    if (error) byId("token").setAttribute("aria-invalid", "true");
    else byId("token").removeAttribute("aria-invalid");
  }

  #reveal(shown) {
    byId("token").type = shown ? "text" : "password";
    byId("show-token").setAttribute("aria-pressed", String(shown));
  }

  #wait(waits) {
    for (const id of ["sign-in-button", "issuer-button"]) byId(id).setAttribute("aria-disabled", String(waits));
    byId("sign-in-button").textContent = waits ? "Looking for your plants…" : "Sign in";
    byId("issuer-button").textContent = waits ? "Signing in…" : `Sign in with ${issuerName}`;
  }

  get #isWaiting() {
    return byId("sign-in-button").getAttribute("aria-disabled") === "true";
  }

  async #submit() {
    if (this.#isWaiting) return;
    const token = tokenIn(byId("token").value);
    const error = tokenError(token);
    this.#mark(error);
    showMessage(byId("sign-in-reason"), "");
    if (error) return byId("token").focus();
    this.#wait(true);
    this.#submitted = token;
    await this.#onToken(token);
  }

  /// Goes to the issuer's sign-in page.
  async #begin() {
    if (this.#isWaiting) return;
    showMessage(byId("sign-in-reason"), "");
    this.#wait(true);
    await beginSignIn().catch((error) => this.#showError(error));
  }

  /// Signs in with the issuer's response.
  async #finish(response) {
    this.show();
    this.#wait(true);
    try {
      this.#submitted = await finishSignIn(response);
    } catch (error) {
      return this.#showError(error);
    }
    await this.#onToken(this.#submitted);
  }

  #showError(error) {
    if (!(error instanceof SignInError)) throw error;
    this.show(error.message);
  }
}

/// Returns the message, and adds that nothing typed is lost, if that is the case.
function withDraft(message) {
  return hasDraft() ? `${message} ${DRAFT_KEPT}` : message;
}
