// The console: signs in, reads the plants, and shows the results of the user's actions.

import { AccessPage } from "./access.js";
import { Address } from "./address.js";
import { Api } from "./api.js";
import { focusContent, listen, showPage } from "./controls.js";
import { AddDialog, KeysDialog, PlantDialog, newKey } from "./dialogs.js";
import { byId } from "./dom.js";
import { forgetDraft, restoreDraft, storeDraft, takeDraft } from "./drafts.js";
import { Garden, plantOf } from "./garden.js";
import { PlantList } from "./list.js";
import { takeResponse } from "./oidc.js";
import { Overview } from "./overview.js";
import { Permissions } from "./permissions.js";
import { Rest } from "./rest.js";
import { SignIn } from "./sign-in.js";
import { load, store } from "./storage.js";
import { called, timeUntil } from "./text.js";
import { Toasts } from "./toasts.js";

/// Maximum number of plants that are loaded; for a longer list, the page says so.
const LOADED_MAX = 50_000;
/// Age in milliseconds at which the list is read again when the user returns to the tab.
const STALE_AFTER = 15_000;
const VIEW_KEY = "plantstore-view";

class Console {
  #api = null;
  #garden = new Garden();
  #etag = null;
  #readAt = 0;
  /// The API client that is reading the list; `null` if none is.
  #reader = null;
  /// The list may differ from the server's, because something was changed while it was read.
  #isOutdated = false;
  #rest = new Rest();
  /// The failure of reading the list.
  #failure = null;
  /// Deletions that can still be undone or have no response yet, by the plant's key.
  #pendingDeletions = new Map();
  #filter = { query: "", tag: null, owner: null, sort: "id" };
  #view = "cards";
  /// The page that is shown, `plants` or `access`.
  #page = "plants";
  /// The token is being checked.
  #isEntering = false;
  #permissions = new Permissions();

  #address = new Address((place) => this.#navigate(place));
  #signIn = new SignIn((token) => this.#useToken(token));
  #overview = new Overview({
    onFilter: (change) => this.#changeFilter(change),
    actions: { add: () => this.#openAdd(), clear: () => this.#showAll(), again: () => this.#enter(), leave: () => this.#signOut() },
  });
  #list = new PlantList(byId("plants"), {
    onOpen: (plant) => this.#plantDialog.open(plant, { canDelete: this.#permissions.canDelete(plant) }),
    onDelete: (plant) => this.#delete(plant),
  });
  #toasts = new Toasts(byId("toasts"), () => focusContent());
  #addDialog = new AddDialog({
    open: (dialog) => this.#address.open(dialog),
    onSubmit: (plant, key, close) => this.#add(plant, key, close),
    onFailedUnseen: (plant, failure) => this.#showFailedAddition(plant, failure),
    onTryNow: () => this.#api.tryNow(),
  });
  #plantDialog = new PlantDialog({ open: (dialog) => this.#address.open(dialog), onDelete: (plant) => this.#delete(plant) });
  #keysDialog = new KeysDialog((dialog) => this.#address.open(dialog));
  #access = new AccessPage(this.#permissions, {
    open: (dialog) => this.#address.open(dialog),
    say: (text, options) => this.#toasts.show(text, options),
    onFailure: (failure) => this.#isRejected(failure),
    onShares: () => this.#render(),
    onListChange: (left) => {
      if (this.#filter.owner === left) this.#filter.owner = null;
      this.#readAgain();
    },
    onOwner: (owner) => this.#address.go({ query: "", tag: null, owner }),
    onOwnTokenRevoked: () => this.#signOut("You have revoked the token that you were signed in with."),
    onRenewed: (secret) => this.#signIn.replace(secret),
  });

  start() {
    this.#loadView();
    // First, because it changes the URL.
    const response = takeResponse();
    this.#navigate(this.#address.read());
    this.#listen();
    this.#signIn.start(response);
  }

  #listen() {
    listen({
      add: () => this.#openAdd(),
      refresh: () => this.#refresh(),
      keys: () => this.#keysDialog.open(),
      signOut: () => this.#signOut(),
      tryNow: () => this.#api?.tryNow(),
      renew: () => this.#access.renew(this.#api, { ...this.#permissions.token, current: true }),
      view: (view) => this.#setView(view),
      filter: (change) => this.#changeFilter(change),
      undo: () => this.#toasts.undoLast(),
      go: (page) => this.#address.go(page === "access" ? null : this.#filter),
      focusFirst: () => !byId("plants").hidden && this.#list.focusAt(0),
      return: () => this.#refreshIfStale(),
      // A closed tab cannot undo any more. A tab that is restored reads the results of its deletions.
      leave: () => this.#sendDeletions(),
      restore: () => this.#api && this.#resume(),
      canAdd: () => this.#permissions.canAdd,
    });
  }

  // Signing in and out

  #useToken(token) {
    this.#api = new Api(token, (retry) => this.#showRetry(retry));
    return this.#enter();
  }

  /// Reads the identity of the token, then everything else.
  async #enter() {
    const api = this.#api;
    this.#isEntering = true;
    this.#failure = null;
    // The token of this tab is in use: the page is shown before the first response.
    if (byId("sign-in").hidden) this.#show();
    try {
      const me = await api.me();
      if (api !== this.#api) return;
      this.#permissions.learn(me);
    } catch (failure) {
      if (api === this.#api && !this.#isRejected(failure)) this.#failure = failure;
    }
    if (api !== this.#api) return;
    this.#isEntering = false;
    if (this.#failure) return this.#show();
    this.#readAccess();
    await this.#read();
    if (api === this.#api) this.#resumeDraft();
  }

  /// Opens the dialog that was open when the same user's last token ended.
  #resumeDraft() {
    const draft = takeDraft(this.#permissions.user);
    if (!draft) return;
    if (draft.form === "add-form") this.#openAdd();
    else this.#access.openForm(draft.form);
    restoreDraft(draft);
  }

  /// Signs out: sends the deletions that could still be undone, and clears all state.
  #signOut(reason = "") {
    this.#sendDeletions();
    this.#clearState();
    forgetDraft();
    this.#navigate({ page: "plants", filter: { query: "", tag: null, owner: null } });
    this.#address.write(this.#filter);
    this.#address.flush();
    this.#signIn.leave(reason);
  }

  /// Asks for another token if the server has rejected this one, and returns true. Pending deletions are dropped, because they
  /// would fail.
  #isRejected({ status }) {
    if (status !== 401) return false;
    storeDraft(this.#permissions.user);
    this.#clearState();
    this.#signIn.reject();
    return true;
  }

  #clearState() {
    this.#pendingDeletions.clear();
    this.#toasts.clear();
    this.#api?.end();
    this.#api = this.#reader = this.#etag = this.#failure = null;
    [this.#garden, this.#rest] = [new Garden(), new Rest()];
    this.#permissions.forget();
    this.#list.clear();
    this.#overview.reset();
    this.#access.clear();
    this.#isOutdated = this.#isEntering = false;
    // The secret of a new token is shown only once.
    for (const dialog of document.querySelectorAll("dialog[open]:not(:has(#secret-view:not([hidden])))")) dialog.close();
    byId("garden").hidden = true;
    this.#render();
    this.#showRetry();
  }

  // Reading

  /// Reads the list page by page. The first time, each page is shown as it arrives; later, the new list replaces the old one
  /// when it is complete.
  async #read() {
    if (this.#reader || !this.#api) return;
    const api = (this.#reader = this.#api);
    this.#isOutdated = false;
    try {
      await this.#readPages(api);
    } catch (failure) {
      if (api === this.#api) this.#onReadFailure(failure);
    }
    // Signed out meanwhile.
    if (api !== this.#api) return;
    this.#reader = null;
    this.#show();
    if (this.#isOutdated && this.#pendingDeletions.size === 0) await this.#read();
  }

  async #readPages(api) {
    const isFirst = this.#etag === null;
    const garden = isFirst ? this.#garden : new Garden();
    let [etag, rest] = [null, null];
    for await (const page of api.pages(this.#etag)) {
      if (api !== this.#api) return;
      etag ??= page.etag;
      garden.append(page.plants.map(plantOf));
      if (isFirst) this.#show();
      rest = garden.size >= LOADED_MAX ? page.next : null;
      if (rest) break;
    }
    if (api !== this.#api) return;
    this.#readAt = Date.now();
    this.#failure = null;
    if (etag === null) return;
    this.#replace(garden, etag);
    if (rest) await this.#countRest(api, rest);
  }

  #replace(garden, etag) {
    [this.#garden, this.#etag, this.#rest] = [garden, etag, new Rest()];
    // The server still has the plants whose deletion can be undone.
    for (const { plant } of this.#pendingDeletions.values()) this.#garden.remove(plant.key);
    this.#show();
  }

  /// Counts the plants that are not loaded, starting with this page of the list.
  async #countRest(api, page) {
    const counting = this.#rest.countFrom(api, page, () => {
      if (api === this.#api) this.#show();
      return api === this.#api;
    });
    this.#searchRest();
    await counting;
  }

  /// Searches for the id in the query among the plants that are not loaded.
  #searchRest() {
    const [api, { query, owner }] = [this.#api, this.#filter];
    const owners = owner === null ? [this.#permissions.user, ...this.#permissions.otherOwners(this.#garden)] : [owner];
    this.#rest.searchSoon(api, query, owners, (plants) => {
      if (api !== this.#api) return;
      for (const plant of plants) {
        if (this.#garden.get(plant.key) || this.#pendingDeletions.has(plant.key)) continue;
        this.#garden.add(plant);
        this.#rest.take();
      }
      this.#render();
    });
  }

  /// Reads the shares, whose roles and offers concern every page, and the rest of the Access page if that is shown.
  #readAccess() {
    if (this.#page === "access") this.#access.show(this.#api);
    else this.#access.readShares(this.#api);
  }

  #onReadFailure(failure) {
    if (this.#isRejected(failure)) return;
    if (this.#garden.size === 0) this.#failure = failure;
    else this.#toasts.show(`This may be out of date. ${failure.message}`, { isError: true });
  }

  /// Shows the plants, and hides the sign-in form.
  #show() {
    if (!this.#api) return;
    const isEntering = !byId("sign-in").hidden;
    this.#signIn.hide();
    byId("garden").hidden = false;
    this.#render();
    // The Tab key starts at the beginning of the page.
    if (isEntering) byId("garden").focus();
  }

  /// Reads the list and the shares again if they are old.
  #refreshIfStale() {
    if (!this.#api || this.#isEntering || document.visibilityState !== "visible" || Date.now() - this.#readAt < STALE_AFTER) return;
    this.#access.readShares(this.#api);
    this.#readAgain();
  }

  /// Reads the list again, after all pending deletions: until then, the server's list still has the deleted plants.
  #readAgain() {
    this.#isOutdated = true;
    if (this.#pendingDeletions.size === 0) this.#read();
  }

  async #refresh() {
    this.#permissions.forgetRoles();
    this.#readAccess();
    const [before, readBefore] = [this.#etag, this.#readAt];
    await this.#read();
    if (this.#readAt === readBefore) return;
    this.#toasts.show(before === this.#etag ? "No plant has changed." : "Up to date.");
  }

  /// Continues in a page that is restored from the browser's cache. Its deletions were sent when it was left.
  async #resume() {
    this.#toasts.endAll();
    await Promise.all([...this.#pendingDeletions.values()].map(({ done }) => done));
    await this.#refresh();
  }

  // Writing

  #openAdd() {
    const tags = this.#garden.tags().map(([tag]) => tag).filter(Boolean);
    const leaving = [...this.#pendingDeletions.values()].map(({ plant }) => plant);
    const { user } = this.#permissions;
    this.#addDialog.open({
      freeId: (owner = user) => this.#garden.freeId(owner, leaving),
      tag: this.#filter.tag,
      tags,
      owners: this.#permissions.otherOwners(this.#garden).map((name) => ({ name, isReadOnly: !this.#permissions.canChange(name) })),
      owner: this.#filter.owner,
    });
  }

  async #add(plant, key, close) {
    const api = this.#api;
    try {
      await api.create(plant, key);
    } catch (failure) {
      if (api === this.#api) this.#onWriteFailure(failure, plant);
      throw failure;
    }
    // Signed out meanwhile.
    if (api !== this.#api) return;
    const added = plantOf({ ...plant, owner: plant.owner ?? this.#permissions.user });
    this.#garden.add(added);
    this.#isOutdated ||= this.#reader !== null;
    this.#failure = null;
    close();
    this.#render();
    this.#showAddition(added, plant.owner);
  }

  #showAddition(plant, owner) {
    const place = this.#list.indexOf(plant);
    const whose = owner === undefined ? "" : ` to ${owner}’s plants`;
    const text = `${called(plant)} added${whose}.${place < 0 ? " The filter hides it." : ""}`;
    if (this.#permissions.canDelete(plant)) this.#toasts.offerUndo("added", { text, onUndo: () => this.#undoAddition(plant) });
    else this.#toasts.show(text);
    if (place >= 0) this.#list.focusAt(place);
  }

  /// Shows the failure of an addition whose form is closed.
  #showFailedAddition(plant, failure) {
    if (!this.#api) return;
    const outcome = failure.isTransient ? `It is not known whether ${called(plant)} was added.` : `${called(plant)} was not added.`;
    this.#toasts.show(`${outcome} ${failure.message}`, { isError: true });
  }

  #onWriteFailure(failure, { owner }) {
    if (this.#isRejected(failure)) return;
    this.#permissions.learnRejection(failure, owner);
    this.#render();
  }

  /// Undoes an addition.
  #undoAddition(plant) {
    const deletion = { plant, key: newKey(), done: null };
    this.#pendingDeletions.set(plant.key, deletion);
    this.#hidePlant(plant);
    deletion.done = this.#finishDeletion(deletion);
  }

  /// Removes a plant from the page at once, and from the server when the time to undo is over. So undoing needs no request and
  /// cannot fail.
  #delete(plant) {
    if (!this.#garden.get(plant.key) || !this.#permissions.canDelete(plant)) return;
    const deletion = { plant, key: newKey(), done: null };
    this.#pendingDeletions.set(plant.key, deletion);
    this.#hidePlant(plant);
    this.#toasts.offerUndo("deleted", {
      text: `${called(plant)} deleted.`,
      onUndo: () => this.#undoDeletion(plant),
      onEnd: () => (deletion.done = this.#finishDeletion(deletion)),
    });
  }

  #hidePlant(plant) {
    const place = this.#list.indexOf(plant);
    this.#garden.remove(plant.key);
    this.#isOutdated ||= this.#reader !== null;
    this.#render();
    if (place >= 0 && !this.#list.focusAt(place, ".delete")) byId(byId("nothing").hidden ? "query" : "nothing-action").focus();
  }

  #undoDeletion(plant) {
    this.#pendingDeletions.delete(plant.key);
    this.#garden.add(plant);
    this.#render();
    this.#list.focusAt(Math.max(0, this.#list.indexOf(plant)));
  }

  async #finishDeletion({ plant, key }) {
    await this.#send(plant, key);
    // A list that is being read may still contain the plant.
    this.#isOutdated ||= this.#reader !== null;
    this.#pendingDeletions.delete(plant.key);
    if (this.#isOutdated && this.#pendingDeletions.size === 0) await this.#read();
  }

  /// Deletes the plant on the server. If that fails, the plant is shown again.
  async #send(plant, key) {
    const api = this.#api;
    try {
      await api.remove(plant, key);
    } catch (failure) {
      // Signed out meanwhile, or another client has deleted the plant.
      if (api !== this.#api || failure.status === 404) return;
      this.#garden.add(plant);
      this.#onWriteFailure(failure, plant);
      if (api === this.#api) this.#toasts.show(`${called(plant)} was not deleted. ${failure.message}`, { isError: true });
    }
  }

  /// Sends all pending deletions. One that is already in flight is sent again with the same key and executed once.
  #sendDeletions() {
    for (const { plant, key } of this.#pendingDeletions.values()) this.#api?.removeWithoutWaiting(plant, key);
  }

  // Showing

  /// Shows the page of a URL; `filter` is that of the plants.
  #navigate({ page, filter = {} }) {
    const isEntered = page === "access" && this.#page !== "access";
    this.#page = page;
    Object.assign(this.#filter, filter);
    byId("query").value = this.#filter.query;
    this.#searchRest();
    this.#render();
    if (isEntered && this.#api && !this.#isEntering) this.#access.show(this.#api);
  }

  #changeFilter(change) {
    Object.assign(this.#filter, change);
    this.#address.write(this.#filter);
    this.#searchRest();
    this.#storeView();
    this.#render();
  }

  #setView(view) {
    this.#view = view;
    this.#storeView();
    this.#render();
  }

  #storeView() {
    store(VIEW_KEY, JSON.stringify({ view: this.#view, sort: this.#filter.sort }));
  }

  #loadView() {
    const { view, sort } = JSON.parse(load(VIEW_KEY) ?? "{}");
    this.#view = view ?? this.#view;
    this.#filter.sort = byId("sort").value = sort ?? this.#filter.sort;
  }

  #showAll() {
    byId("query").value = "";
    this.#changeFilter({ query: "", tag: null, owner: null });
    byId("query").focus();
  }

  #render() {
    const found = this.#garden.select(this.#filter);
    const [isReading, isFirst, permissions] = [this.#reader !== null || this.#isEntering, this.#etag === null, this.#permissions];
    showPage(this.#page, permissions.user ?? "", permissions.offers);
    this.#access.showRenewal();
    byId("plants").hidden = found.length === 0;
    const state = { garden: this.#garden, found: found.length, filter: this.#filter, unsearched: this.#rest.count };
    this.#overview.render({ ...state, failure: this.#failure, permissions, isReading, isFirst });
    for (const view of ["cards", "table"]) byId(`as-${view}`).setAttribute("aria-pressed", String(view === this.#view));
    if (byId("garden").hidden) return;
    const owners = this.#garden.owners().length > 1;
    this.#list.show(found, { view: this.#view, owners, canDelete: (plant) => permissions.canDelete(plant) });
  }

  #showRetry(retry) {
    const words = retry ? `${retry.failure.message} Trying again in ${timeUntil(retry.until)}.` : "";
    byId("trouble").hidden = words === "";
    byId("trouble-text").textContent = words;
    this.#signIn.showRetry(words);
    this.#addDialog.showRetry(words);
  }
}

new Console().start();
