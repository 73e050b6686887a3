// The Access page: the user's tokens, and the shares that the user has granted and received.

import { ConfirmDialog, ShareDialog, TokenDialog } from "./access-dialogs.js";
import { byId } from "./dom.js";
import { RECEIVED_ROLES, ROLES, dateOf, dayOf, scopeWords } from "./scopes.js";
import { called, count } from "./text.js";

export class AccessPage {
  #permissions;
  #actions;
  #api = null;
  #tokenDialog;
  #shareDialog;
  #confirmDialog;
  #isRenewing = false;
  /// The shares that are shown, as text.
  #shownShares = "";

  /// `actions` are `open` (opens a dialog), `say` (shows a message), `onFailure` (gets every failure of a request first), `onShares`
  /// (the permissions have learned the shares), `onListChange` (the user has accepted a share, or left that of the owner it
  /// gets), `onOwner` (shows the plants of an owner), `onOwnTokenRevoked`, and `onRenewed` (gets the secret that replaces the one in use).
  constructor(permissions, actions) {
    this.#permissions = permissions;
    this.#actions = actions;
    const { open } = actions;
    this.#tokenDialog = new TokenDialog({
      open,
      onCreate: (token) => this.#createToken(token),
      onUnseen: ({ id, label }) => actions.say(`${called({ name: label || `Token ${id}` })} was created, but its secret was not shown. Revoke it.`),
    });
    this.#shareDialog = new ShareDialog({ open, onGrant: (user, role) => this.#grant(user, role) });
    this.#confirmDialog = new ConfirmDialog({ open });
    byId("new-token").addEventListener("click", () => this.openForm("token-form"));
    byId("new-share").addEventListener("click", () => this.openForm("share-form"));
    byId("tokens-again").addEventListener("click", () => this.#readTokens());
    byId("shares-again").addEventListener("click", () => this.#readShares());
  }

  /// Shows the page, and reads what it shows.
  show(api) {
    this.#api = api;
    const permissions = this.#permissions;
    byId("access-identity").textContent = identityOf(permissions);
    for (const [part, what] of [["tokens", "list, create or revoke tokens"], ["shares", "see or change what is shared"]]) {
      const isAllowed = permissions.has(`${part}:manage`);
      byId(`${part}-allowed`).hidden = !isAllowed;
      byId(`${part}-forbidden`).hidden = isAllowed;
      byId(`${part}-forbidden`).textContent = `This token lacks the scope ${part}:manage, so it cannot ${what}.`;
    }
    byId("new-token").hidden = !permissions.has("tokens:manage");
    byId("new-share").hidden = !permissions.has("shares:manage");
    return Promise.all([this.#readTokens(), this.#readShares()]);
  }

  /// Removes everything that was shown.
  clear() {
    this.#api = null;
    this.#shownShares = "";
    for (const id of ["tokens", "ended-tokens", "offers", "granted", "received"]) byId(id).replaceChildren();
    byId("access-identity").textContent = "";
  }

  /// Opens the dialog with this form.
  openForm(id) {
    if (id === "token-form" && this.#permissions.has("tokens:manage")) this.#tokenDialog.open(this.#permissions.token);
    if (id === "share-form" && this.#permissions.has("shares:manage")) this.#shareDialog.open();
  }

  /// Replaces a token by a new one with the same label and scopes, and then revokes it.
  async renew(api, token) {
    if (this.#isRenewing) return;
    this.#isRenewing = true;
    this.#api = api;
    await this.#replace(token).catch(({ message }) => api === this.#api && this.#actions.say(message, { isError: true }));
    this.#isRenewing = false;
    if (api === this.#api) await this.show(api);
  }

  async #replace({ id, label, scopes, current }) {
    const renewed = await this.#createToken({ label, scopes, ...(current && { renew: true }) });
    // Signed out meanwhile.
    if (!this.#api) return;
    if (current) this.#use(renewed);
    const stays = current ? "You stay signed in with it. " : "";
    this.#tokenDialog.openSecret(renewed.secret, `${stays}Programs that used the old one need it.`);
    await this.#revoke((api) => api.revokeToken(id)).catch(({ message }) => {
      throw new Error(`The old token was not revoked. ${message}`);
    });
  }

  /// Goes on with the token that replaces the one in use.
  #use({ id, label, scopes, expires_at, secret }) {
    this.#api.useToken(secret);
    this.#actions.onRenewed(secret);
    this.#permissions.learn({ user: this.#permissions.user, token: { id, label, scopes, expires_at } });
    this.showRenewal();
  }

  /// Shows that the token in use ends soon, on every page.
  showRenewal() {
    const { isEnding, token } = this.#permissions;
    const canRenew = this.#permissions.has("tokens:manage");
    const advice = canRenew ? "Renew it for 90 days: you get a new one, and this one is revoked." : "Ask the operator of this service for a new one.";
    const text = isEnding ? `Your token ends ${dateOf(token.expires_at)}. ${advice}` : "";
    // Only a changed message is read out.
    if (byId("renewal-text").textContent !== text) byId("renewal-text").textContent = text;
    byId("renewal").hidden = text === "";
    byId("renew").hidden = !canRenew;
  }

  async #readTokens() {
    if (!this.#permissions.has("tokens:manage")) return;
    const tokens = await this.#read("tokens", (api) => api.tokens());
    if (!tokens) return;
    const isActive = ({ state }) => state === "active";
    const inOrder = tokens.sort((one, other) => other.current - one.current || other.created_at.localeCompare(one.created_at) || other.id - one.id);
    const ended = inOrder.filter((token) => !isActive(token));
    byId("tokens").replaceChildren(...inOrder.filter(isActive).map((token) => this.#tokenEntry(token)));
    byId("ended-tokens").replaceChildren(...ended.map((token) => this.#tokenEntry(token)));
    byId("ended").hidden = ended.length === 0;
    byId("ended-count").textContent = `${count(ended.length, "token")} that ${ended.length === 1 ? "has" : "have"} ended`;
  }

  /// Reads the shares for all pages: the permissions learn the user's roles and offers.
  readShares(api) {
    this.#api = api;
    return this.#readShares();
  }

  async #readShares() {
    if (!this.#permissions.has("shares:manage")) return;
    const shares = await this.#read("shares", (api) => api.shares());
    if (!shares) return;
    this.#permissions.learnShares(shares.received);
    this.#actions.onShares();
    // An entry that has the focus is replaced only if the shares have changed.
    const text = JSON.stringify(shares);
    if (text !== this.#shownShares) this.#showShares(shares);
    this.#shownShares = text;
  }

  #showShares({ granted, received }) {
    const [offers, accepted] = ["offered", "accepted"].map((state) => received.filter((share) => share.state === state));
    byId("offers").replaceChildren(...offers.map((share) => this.#offerEntry(share)));
    byId("offers-part").hidden = offers.length === 0;
    byId("granted").replaceChildren(...granted.map((share) => this.#grantedEntry(share)));
    byId("granted-none").hidden = granted.length > 0;
    byId("received").replaceChildren(...accepted.map((share) => this.#receivedEntry(share)));
    byId("received-none").hidden = accepted.length > 0;
  }

  /// Reads a part of the page; `null` if that fails or the user has signed out meanwhile.
  async #read(part, request) {
    const api = this.#api;
    byId(`${part}-failure`).hidden = true;
    try {
      const read = await request(api);
      return api === this.#api ? read : null;
    } catch (failure) {
      if (api !== this.#api || this.#actions.onFailure(failure)) return null;
      byId(`${part}-failure-text`).textContent = failure.message;
      byId(`${part}-failure`).hidden = false;
      return null;
    }
  }

  /// Sends a change. A failure is shown by the dialog that asked for it.
  async #change(request) {
    const api = this.#api;
    try {
      return await request(api);
    } catch (failure) {
      if (api === this.#api) this.#actions.onFailure(failure);
      throw failure;
    }
  }

  async #createToken(token) {
    try {
      const created = await this.#change((api) => api.createToken(token));
      this.#readTokens();
      return created;
    } catch (failure) {
      const isUnknown = [0, 502, 504].includes(failure.status) || failure.code === 50301;
      if (!isUnknown || !this.#api) throw failure;
      this.#readTokens();
      throw new Error(`${failure.message} If the new token is in the list, revoke it: its secret is lost.`);
    }
  }

  async #grant(user, role) {
    await this.#change((api) => api.grantShare(user, role));
    this.#actions.say(`Shared with ${user} as ${role}.`);
    await this.#readShares();
  }

  #tokenEntry(token) {
    const { id, label, scopes, created_at, expires_at, last_used_at, state, current } = token;
    const name = label || `Token ${id}`;
    const end = expires_at ? `${state === "active" ? "ends" : "ended"} ${dateOf(expires_at)}` : "never ends";
    const facts = [`Created ${dateOf(created_at)}`, state === "revoked" ? "revoked" : end, last_used_at ? `last used ${dayOf(last_used_at)}` : "never used"];
    const badge = current ? "In use here" : state === "active" ? "" : state;
    const entry = entryOf({ name, badge, chips: scopes, facts: facts.join(" · ") });
    if (state !== "active") return entry;
    if (this.#permissions.canRenew(token)) entry.append(buttonOf("Renew", `Renew ${name}`, () => this.renew(this.#api, token)));
    const warning = current ? " It is the one that you are signed in with: you will be signed out." : "";
    const onConfirm = async () => {
      await this.#revoke((api) => api.revokeToken(id));
      if (current) return this.#actions.onOwnTokenRevoked();
      this.#actions.say(`${called({ name })} revoked.`);
      await this.#readTokens();
    };
    const text = `Programs that use it stop working within seconds. This cannot be undone.${warning}`;
    entry.append(this.#confirmedButton("Revoke", name, { title: `Revoke ${called({ name })}?`, text, onConfirm }));
    return entry;
  }

  #grantedEntry({ user, role, state, created_at }) {
    const facts = state === "offered" ? ` after accepting · offered ${dateOf(created_at)}` : ` · accepted · shared ${dateOf(created_at)}`;
    const entry = entryOf({ name: user, badge: role, facts: `${user} ${ROLES[role] ?? role}${facts}` });
    const onConfirm = async () => {
      await this.#revoke((api) => api.revokeShare(user));
      this.#actions.say(`Your plants are no longer shared with ${user}.`);
      await this.#readShares();
    };
    const text = `${user} will not see your plants. You can share them again at any time.`;
    entry.append(this.#confirmedButton("Revoke", user, { title: `Stop sharing with ${user}?`, text, onConfirm }));
    return entry;
  }

  #offerEntry({ owner, role }) {
    const entry = entryOf({ name: owner, badge: role, facts: `${RECEIVED_ROLES[role] ?? role} after accepting` });
    const accept = async () => {
      await this.#change((api) => api.acceptShare(owner)).catch((failure) => {
        throw failure.status === 404 ? new Error(`The offer of ${owner} is no longer there.`) : failure;
      });
      this.#actions.say(`The plants of ${owner} are in your list.`);
      this.#actions.onListChange();
    };
    const decline = async () => {
      await this.#revoke((api) => api.leaveShare(owner));
      this.#actions.say(`Offer of ${owner} declined.`);
    };
    entry.append(buttonOf("Decline", `Decline the offer of ${owner}`, () => this.#respond(entry, decline)));
    entry.append(buttonOf("Accept", `Accept the offer of ${owner}`, () => this.#respond(entry, accept)));
    entry.lastChild.className = "primary";
    return entry;
  }

  /// Accepts or declines an offer, once, and shows the shares as they are then.
  async #respond(entry, request) {
    if (entry.ariaBusy === "true") return;
    entry.ariaBusy = "true";
    const api = this.#api;
    await request().catch(({ message }) => api === this.#api && this.#actions.say(message, { isError: true }));
    if (api === this.#api) await this.#readShares();
    entry.ariaBusy = "false";
    // The button that was pressed is gone.
    if (document.activeElement === document.body) byId("shares-title").focus({ preventScroll: true });
  }

  #receivedEntry({ owner, role }) {
    const entry = entryOf({ name: owner, badge: role, facts: RECEIVED_ROLES[role] ?? role });
    entry.append(buttonOf("See plants", `See plants of ${owner}`, () => this.#actions.onOwner(owner)));
    const onConfirm = async () => {
      await this.#revoke((api) => api.leaveShare(owner));
      this.#actions.say(`The plants of ${owner} are no longer in your list.`);
      this.#actions.onListChange(owner);
      await this.#readShares();
    };
    const text = `The plants disappear from your list. To see them again, you need a new offer of ${owner}.`;
    entry.append(this.#confirmedButton("Leave", owner, { title: `Leave the plants of ${owner}?`, text, onConfirm }));
    return entry;
  }

  #confirmedButton(action, name, question) {
    const button = buttonOf(action, `${action} ${name}`, () => this.#confirmDialog.open({ action, ...question }));
    button.className = "danger";
    return button;
  }

  /// Sends a revocation; one that another client has done already counts as done.
  #revoke(request) {
    return this.#change(request).catch((failure) => {
      if (failure.status !== 404) throw failure;
    });
  }
}

/// Returns a sentence about the token that the user is signed in with.
function identityOf({ user, token: { label, id, issuer, expires_at } }) {
  const name = label ? `the token ${called({ name: label })}` : `token ${id}`;
  const means = issuer === undefined ? name : `your account at ${new URL(issuer).host}`;
  const end = expires_at ? `until ${dateOf(expires_at)}` : "without an end";
  return `You are ${user}, signed in with ${means}, ${end}.`;
}

function entryOf({ name, badge, chips = [], facts }) {
  const entry = document.getElementById("entry-template").content.firstElementChild.cloneNode(true);
  entry.querySelector("h3").textContent = name;
  entry.querySelector(".badge").textContent = badge;
  entry.querySelector(".scopes").replaceChildren(...chips.map(chipOf));
  entry.querySelector(".hint").textContent = facts;
  return entry;
}

/// Returns a button; its label, for screen readers, also says what it acts on.
function buttonOf(text, label, onClick) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.setAttribute("aria-label", label);
  button.addEventListener("click", onClick);
  return button;
}

function chipOf(scope) {
  const chip = document.createElement("li");
  chip.textContent = scopeWords(scope);
  chip.title = scope;
  return chip;
}
