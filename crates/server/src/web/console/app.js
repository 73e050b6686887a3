// The console: signs in, reads the plants, and shows the results of the user's actions.

import { AccessPage } from "./access.js";
import { Address } from "./address.js";
import { Api } from "./api.js";
import { focusContent, listen, showPage, showSelection } from "./controls.js";
import { KeysDialog, PlantDialog } from "./dialogs.js";
import { byId } from "./dom.js";
import { forgetDraft, restoreDraft, storeDraft, takeDraft } from "./drafts.js";
import { Events } from "./events.js";
import { Garden, knownOr, plantOf } from "./garden.js";
import { PlantList } from "./list.js";
import { takeResponse } from "./oidc.js";
import { Overview } from "./overview.js";
import { Permissions } from "./permissions.js";
import { Rest } from "./rest.js";
import { SignIn } from "./sign-in.js";
import { load, store } from "./storage.js";
import { timeUntil } from "./text.js";
import { Toasts } from "./toasts.js";
import { Writes } from "./writes.js";

/// Maximum number of plants that are loaded; for a longer list, the page says so.
const LOADED_MAX = 50_000;
/// Age in milliseconds at which the list is read again when the user returns to the tab.
const STALE_AFTER = 15_000;
/// Share of the time in which the list is read because other clients have changed it, and the longest pause in milliseconds.
const LIVE_SHARE = 0.1;
const LIVE_PAUSE_MAX = 60_000;
const VIEW_KEY = "plantstore-view";

class Console {
  #api = null;
  #garden = new Garden();
  #etag = null;
  #readAt = 0;
  /// The API client that is reading the list; `null` if none is.
  #reader = null;
  /// Resolves when the list that is being read is complete.
  #reading = null;
  /// The list is being read because other clients have changed it, which the page does not show.
  #isQuiet = false;
  /// The list that is being read may differ from the server's, because this page has changed something meanwhile.
  #isOutdated = false;
  /// Other clients have changed the list since the last read has begun.
  #isBehind = false;
  #liveTimer;
  /// Time of the next read because of changes by other clients.
  #liveFrom = 0;
  #rest = new Rest();
  /// The failure of reading the list.
  #failure = null;
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
    actions: { add: () => this.#writes.openAdd(), clear: () => this.#showAll(), again: () => this.#enter(), leave: () => this.#signOut() },
  });
  #events = new Events((etag) => this.#onEtag(etag));
  #list = new PlantList(byId("plants"), {
    onOpen: (plant) => this.#plantDialog.open(plant),
    onEdit: (plant) => this.#writes.openEdit(plant),
    onDelete: (plants) => this.#writes.delete(plants),
    onSelect: ({ isOn, size }) => showSelection(isOn, size),
  });
  #toasts = new Toasts(byId("toasts"), () => focusContent());
  #plantDialog = new PlantDialog(this.#permissions, {
    open: (dialog) => this.#address.open(dialog),
    onEdit: (plant) => this.#writes.openEdit(plant),
    onDelete: (plant) => this.#writes.delete([plant]),
  });
  #writes = new Writes(this.#permissions, { list: this.#list, toasts: this.#toasts, page: this.#pageOfWrites() });
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
      add: () => this.#writes.openAdd(),
      refresh: () => this.#refresh(),
      keys: () => this.#keysDialog.open(),
      signOut: () => this.#signOut(),
      tryNow: () => this.#tryNow(),
      renew: () => this.#access.renew(this.#api, { ...this.#permissions.token, current: true }),
      view: (view) => this.#setView(view),
      filter: (change) => this.#changeFilter(change),
      undo: () => this.#toasts.undoLast(),
      go: (page) => this.#address.go(page === "access" ? null : this.#filter),
      focusFirst: () => !byId("plants").hidden && this.#list.focusAt(0),
      return: () => this.#onReturn(),
      select: () => (this.#list.selection.isOn ? this.#list.selection.end() : this.#list.selection.begin()),
      selectAll: () => this.#list.selectAll(),
      deleteSelected: () => this.#writes.delete(this.#list.selected),
      // A closed tab cannot undo any more. A tab that is restored reads the results of its deletions.
      leave: () => this.#writes.sendDeletions(),
      restore: () => this.#api && this.#resume(),
      isBusy: () => this.#writes.isBusy,
      canAdd: () => this.#permissions.canAdd,
    });
  }

  /// Returns what the writes need of this page.
  #pageOfWrites() {
    const console = this;
    return {
      get api() {
        return console.#api;
      },
      get garden() {
        return console.#garden;
      },
      get filter() {
        return console.#filter;
      },
      open: (dialog) => this.#address.open(dialog),
      render: () => this.#render(),
      onWrite: () => {
        this.#isOutdated ||= this.#reader !== null;
        this.#failure = null;
      },
      isRejected: (failure) => this.#isRejected(failure),
    };
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
    if (api !== this.#api) return;
    this.#follow();
    this.#resumeDraft();
  }

  /// Opens the dialog that was open when the same user's last token ended.
  #resumeDraft() {
    const draft = takeDraft(this.#permissions.user);
    if (!draft) return;
    const [edited] = draft.fields.filter(([name]) => name === "edited").map(([, key]) => this.#garden.get(key));
    if (draft.form !== "add-form") this.#access.openForm(draft.form);
    else if (edited) this.#writes.openEdit(edited);
    else this.#writes.openAdd();
    restoreDraft(draft);
  }

  /// Signs out: sends the deletions that could still be undone, and clears all state.
  #signOut(reason = "") {
    this.#writes.sendDeletions();
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
    this.#writes.clear();
    this.#toasts.clear();
    this.#events.forget();
    clearTimeout(this.#liveTimer);
    this.#api?.end();
    this.#api = this.#reader = this.#etag = this.#failure = null;
    [this.#garden, this.#rest] = [new Garden(), new Rest()];
    this.#permissions.forget();
    this.#list.clear();
    this.#overview.reset();
    this.#access.clear();
    this.#isOutdated = this.#isBehind = this.#isEntering = false;
    // The secret of a new token is shown only once.
    for (const dialog of document.querySelectorAll("dialog[open]:not(:has(#secret-view:not([hidden])))")) dialog.close();
    byId("garden").hidden = true;
    this.#render();
    this.#showRetry();
  }

  // Reading

  /// Reads the list, and returns when it is shown. If it is being read already, nothing else is read.
  #read({ isQuiet = false } = {}) {
    const isIdle = this.#reader === null;
    this.#isQuiet = isQuiet && (isIdle || this.#isQuiet);
    if (isIdle && this.#api) this.#reading = this.#readUntilCurrent();
    else this.#render();
    return this.#reading;
  }

  async #readUntilCurrent() {
    const api = (this.#reader = this.#api);
    try {
      do {
        this.#isOutdated = this.#isBehind = false;
        await this.#readPages(api);
      } while (api === this.#api && this.#isOutdated);
    } catch (failure) {
      if (api === this.#api) this.#onReadFailure(failure);
    }
    // Signed out meanwhile.
    if (api !== this.#api) return;
    this.#reader = null;
    this.#show();
    if (this.#isBehind) this.#readLive();
  }

  /// Reads the list page by page. The first time, each page is shown as it arrives; later, the new list replaces the old one
  /// when it is complete.
  async #readPages(api) {
    const isFirst = this.#etag === null;
    const garden = isFirst ? this.#garden : new Garden();
    let [etag, next, found] = [null, null, []];
    const rest = new Rest();
    for await (const page of api.pages({ etag: this.#etag })) {
      if (api !== this.#api) return;
      etag ??= page.etag;
      garden.append(page.plants.map(plantOf).map((plant) => knownOr(this.#garden.get(plant.key), plant)));
      if (isFirst) this.#show();
      next = garden.size >= LOADED_MAX ? page.next : null;
      if (next) break;
    }
    if (next) found = (await rest.find(api, this.#filter, this.#searchedOwners()).catch(() => [])).filter(({ key }) => !garden.get(key));
    if (api !== this.#api) return;
    this.#readAt = Date.now();
    this.#failure = null;
    // What this page has changed meanwhile may be missing: the list is read again instead of being shown.
    if (etag === null || (this.#isOutdated && !isFirst)) return;
    garden.add(...found);
    this.#list.changeInPlace(() => this.#replace(garden, { etag, rest, isComplete: next === null }));
    if (next) await this.#countRest(api, next, found.length);
  }

  #replace(garden, { etag, rest, isComplete }) {
    [this.#garden, this.#etag, this.#rest] = [garden, etag, rest];
    // The server still has the plants whose deletion can be undone.
    this.#writes.hideDeleted(garden, isComplete);
    this.#show();
    for (const dialog of [this.#plantDialog, this.#writes.form]) dialog.showCurrent((key) => garden.get(key));
  }

  /// Counts the plants that are not loaded: those from this page of the list on, except the number that is `loaded`.
  async #countRest(api, page, loaded) {
    const rest = this.#rest;
    const counting = rest.countFrom(api, page, loaded, () => {
      if (api === this.#api) this.#show();
      return api === this.#api && rest === this.#rest;
    });
    this.#searchRest();
    await counting;
  }

  /// Asks the server for plants that match the filter and are not loaded.
  #searchRest() {
    const [api, rest] = [this.#api, this.#rest];
    rest.findSoon(api, this.#filter, this.#searchedOwners(), (plants) => {
      if (api !== this.#api || rest !== this.#rest) return;
      const found = plants.filter(({ key }) => !this.#garden.get(key) && !this.#writes.isDeleting(key));
      this.#garden.add(...found);
      rest.take(found.length);
      this.#render();
    });
  }

  #searchedOwners() {
    const { owner } = this.#filter;
    return owner === null ? [this.#permissions.user, ...this.#permissions.otherOwners(this.#garden)] : [owner];
  }

  // Changes by other clients

  /// Follows the events while the tab is visible. A hidden tab would take one of the few connections that a browser has to a server.
  #follow() {
    if (this.#api && this.#etag !== null && document.visibilityState === "visible") this.#events.follow(this.#api);
    else this.#events.stop();
  }

  /// Reads the list if it has another entity tag than the one that is shown.
  #onEtag(etag) {
    if (etag === this.#etag) return;
    this.#isBehind = true;
    this.#readLive();
  }

  /// Reads the list because other clients have changed it, for a part of the time only: a long list that often changes is read less often.
  #readLive() {
    clearTimeout(this.#liveTimer);
    // Called again after the list that is being read.
    if (this.#reader) return;
    this.#liveTimer = setTimeout(async () => {
      const [start, owners] = [Date.now(), this.#garden.owners().join()];
      await this.#read({ isQuiet: true });
      this.#liveFrom = Date.now() + Math.min(((Date.now() - start) * (1 - LIVE_SHARE)) / LIVE_SHARE, LIVE_PAUSE_MAX);
      // A share has begun or ended.
      if (this.#api && this.#garden.owners().join() !== owners) this.#access.readShares(this.#api);
    }, Math.max(0, this.#liveFrom - Date.now()));
  }

  #onReturn() {
    this.#follow();
    this.#refreshIfStale();
  }

  /// Retries at once what waits for a retry.
  #tryNow() {
    this.#api?.tryNow();
    this.#events.stop();
    this.#follow();
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

  /// Reads the list again; one that is being read may be older than the reason for this.
  #readAgain() {
    this.#isOutdated = true;
    this.#read();
  }

  async #refresh() {
    this.#permissions.forgetRoles();
    this.#readAccess();
    const [before, readBefore] = [this.#etag, this.#readAt];
    // A list that is being read because of changes by other clients was asked for earlier.
    if (this.#reader && this.#isQuiet) await this.#reading;
    await this.#read();
    if (this.#readAt === readBefore) return;
    this.#toasts.show(before === this.#etag ? "No plant has changed." : "Up to date.");
  }

  /// Continues in a page that is restored from the browser's cache. Its deletions were sent when it was left.
  async #resume() {
    this.#toasts.endAll();
    await this.#writes.settled();
    await this.#refresh();
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
    const isReading = (this.#reader !== null && !this.#isQuiet) || this.#isEntering;
    const [isFirst, permissions] = [this.#etag === null, this.#permissions];
    showPage(this.#page, permissions.user ?? "", permissions.offers);
    this.#access.showRenewal();
    byId("plants").hidden = found.length === 0;
    const [unsearched, searched] = this.#rest.hasAll(this.#filter) ? [null, this.#rest.count] : [this.#rest.count, null];
    const state = { garden: this.#garden, found: found.length, filter: this.#filter, unsearched, searched };
    byId("select").hidden = !permissions.has("plants:delete");
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
    this.#writes.form.showRetry(words);
  }
}

new Console().start();
