// The console: signs in, reads the plants, and shows what becomes of what a person does.

import { Address } from "./address.js";
import { Api } from "./api.js";
import { AddDialog, KeysDialog, PlantDialog, newKey } from "./dialogs.js";
import { Garden, plantOf } from "./garden.js";
import { PlantList } from "./list.js";
import { Overview } from "./overview.js";
import { Permissions } from "./permissions.js";
import { SignIn } from "./sign-in.js";
import { keep, recall } from "./storage.js";
import { called, count } from "./text.js";
import { Toasts } from "./toasts.js";

/// Plants that are kept here at the most; beyond them, the list is said to be cut.
const MOST = 50_000;
/// Plants beyond those that are counted at the most.
const MOST_COUNTED = 200_000;
/// Coming back to the tab after this long is a reason to look again.
const STALE_AFTER = 15_000;
const VIEW_KEY = "plantstore-view";

const byId = (id) => document.getElementById(id);

class Console {
  #api = null;
  #garden = new Garden();
  #etag = null;
  #readAt = 0;
  /// Who reads the list now.
  #reader = null;
  /// Whether what is known here may differ from the server's, because something was changed while the list was read.
  #unsure = false;
  /// Plants beyond those that are kept here, as far as they are counted; `null` if there are none.
  #unsearched = null;
  /// Why the list cannot be shown.
  #failure = null;
  /// Deletions that can still be undone or are not answered yet, by the plant's key.
  #leaving = new Map();
  #filter = { query: "", tag: null, owner: null, sort: "id" };
  #view = "cards";
  #permissions = new Permissions();

  #address = new Address((filter) => this.#apply(filter));
  #signIn = new SignIn((token) => this.#enter(token));
  #overview = new Overview({
    onFilter: (change) => this.#narrow(change),
    actions: { add: () => this.#openAdd(), clear: () => this.#showAll(), again: () => this.#read(), leave: () => this.#leave() },
  });
  #list = new PlantList(byId("plants"), {
    onOpen: (plant) => this.#plantDialog.open(plant, { canDelete: this.#permissions.canDelete(plant) }),
    onDelete: (plant) => this.#delete(plant),
  });
  #toasts = new Toasts(byId("toasts"), () => this.#focusPlants());
  #addDialog = new AddDialog({
    open: (dialog) => this.#address.open(dialog),
    onSubmit: (plant, key, close) => this.#add(plant, key, close),
    onUnseen: (plant, failure) => this.#tellUnseen(plant, failure),
    onTryNow: () => this.#api.tryNow(),
  });
  #plantDialog = new PlantDialog({ open: (dialog) => this.#address.open(dialog), onDelete: (plant) => this.#delete(plant) });
  #keysDialog = new KeysDialog((dialog) => this.#address.open(dialog));

  start() {
    this.#recallView();
    this.#apply(this.#address.read());
    this.#listen();
    this.#signIn.start();
  }

  #listen() {
    const onClick = (id, action) => byId(id).addEventListener("click", action);
    onClick("add", () => this.#openAdd());
    onClick("refresh", () => this.#lookNow());
    onClick("keys", () => this.#keysDialog.open());
    onClick("sign-out", () => this.#leave());
    onClick("try-now", () => this.#api.tryNow());
    onClick("as-cards", () => this.#setView("cards"));
    onClick("as-table", () => this.#setView("table"));
    onClick("skip", (event) => {
      // The fragment of the address is the filter's.
      event.preventDefault();
      this.#focusPlants();
    });
    byId("query").addEventListener("input", ({ target }) => this.#narrow({ query: target.value }));
    byId("sort").addEventListener("change", ({ target }) => this.#narrow({ sort: target.value }));
    byId("owner").addEventListener("change", ({ target }) => this.#narrow({ owner: target.value || null }));
    byId("add-dialog").addEventListener("close", () => {
      // The button that opened it may have been hidden meanwhile.
      const { activeElement } = document;
      if (activeElement === document.body || !activeElement.checkVisibility()) this.#focusPlants();
    });
    addEventListener("keydown", (event) => this.#onKey(event));
    addEventListener("online", () => this.#api?.tryNow());
    document.addEventListener("visibilitychange", () => this.#lookIfStale());
    addEventListener("focus", () => this.#lookIfStale());
    const controls = document.querySelector(".controls");
    const onStuck = ([{ intersectionRatio }]) => controls.classList.toggle("stuck", intersectionRatio < 1);
    new IntersectionObserver(onStuck, { threshold: 1, rootMargin: "-1px 0px 0px" }).observe(controls);
    // A tab that is closed cannot be asked to undo any more; one that comes back has to look at what became of it.
    addEventListener("pagehide", () => this.#sendDeletions());
    addEventListener("pageshow", ({ persisted }) => {
      if (persisted && this.#api) this.#comeBack();
    });
  }

  #onKey(event) {
    const typing = event.target.closest("input, select, textarea, dialog");
    if (byId("garden").hidden || event.altKey) return;
    if (event.key === "Escape" && event.target === byId("query")) return this.#clearSearch();
    if (typing) return;
    const isUndo = event.key === "z" && (event.ctrlKey || event.metaKey);
    if (isUndo ? !this.#toasts.undoLast() : event.ctrlKey || event.metaKey) return;
    if (event.key === "/") byId("query").focus();
    else if (event.key === "?") this.#keysDialog.open();
    else if (event.key === "n" && this.#permissions.canAdd) this.#openAdd();
    else if (!isUndo) return;
    event.preventDefault();
  }

  #clearSearch() {
    byId("query").value = "";
    this.#narrow({ query: "" });
  }

  #focusPlants() {
    byId(byId("plants").hidden ? "nothing-action" : "plants").focus();
  }

  // Coming and going

  #enter(token) {
    this.#api = new Api(token, (trouble) => this.#tellTrouble(trouble));
    const read = this.#read();
    // With the token of this tab nobody waits at the door.
    if (byId("sign-in").hidden) this.#show();
    return read;
  }

  /// Signs out: sends the deletions that could still be undone, and forgets everything.
  #leave() {
    this.#sendDeletions();
    this.#forget();
    this.#apply({ query: "", tag: null, owner: null });
    this.#address.write(this.#filter);
    this.#address.flush();
    this.#signIn.show();
  }

  /// Asks for another token after the server has rejected this one, with which nothing can be deleted any more.
  #reject() {
    this.#forget();
    this.#signIn.reject();
  }

  #forget() {
    this.#leaving.clear();
    this.#toasts.clear();
    this.#api?.end();
    this.#api = this.#reader = this.#etag = this.#failure = this.#unsearched = null;
    this.#garden = new Garden();
    this.#permissions.forget();
    this.#list.clear();
    this.#overview.reset();
    this.#unsure = false;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    byId("garden").hidden = true;
    this.#render();
    this.#tellTrouble();
  }

  // Reading

  /// Reads the list page by page. The first time what has come is shown at once; later the new list replaces the old one
  /// when it is whole.
  async #read() {
    if (this.#reader || !this.#api) return;
    const api = (this.#reader = this.#api);
    this.#unsure = false;
    try {
      await this.#readPages(api);
    } catch (failure) {
      if (api === this.#api) this.#onReadFailure(failure);
    }
    // Signed out meanwhile.
    if (api !== this.#api) return;
    this.#reader = null;
    this.#show();
    if (this.#unsure && this.#leaving.size === 0) await this.#read();
  }

  async #readPages(api) {
    const isFirst = this.#etag === null;
    const garden = isFirst ? this.#garden : new Garden();
    let [etag, beyond] = [null, null];
    for await (const page of api.pages(this.#etag)) {
      if (api !== this.#api) return;
      etag ??= page.etag;
      garden.append(page.plants.map(plantOf));
      if (isFirst) this.#show();
      beyond = garden.size >= MOST ? page.next : null;
      if (beyond) break;
    }
    if (api !== this.#api) return;
    this.#readAt = Date.now();
    this.#failure = null;
    if (etag === null) return;
    this.#replace(garden, etag);
    if (beyond) await this.#countBeyond(api, beyond);
  }

  #replace(garden, etag) {
    const [added, focused] = [this.#garden.unlisted(), this.#garden.get(this.#list.focusedKey)];
    [this.#garden, this.#etag, this.#unsearched] = [garden, etag, null];
    this.#learnUser(added);
    // The server has them until their time is over.
    for (const { plant } of this.#leaving.values()) this.#garden.remove(this.#listed(plant).key);
    this.#show();
    const place = focused && !this.#garden.get(focused.key) ? this.#list.placeOf(this.#listed(focused)) : -1;
    if (place >= 0) this.#list.focusAt(place);
  }

  /// Counts the plants that are not kept here, from this page of the list on.
  async #countBeyond(api, page) {
    this.#unsearched = { number: 0, isExact: false };
    this.#show();
    for await (const { number, hasNext } of api.counts(page)) {
      if (api !== this.#api) return;
      this.#unsearched = { number: this.#unsearched.number + number, isExact: !hasNext };
      this.#show();
      if (this.#unsearched.number >= MOST_COUNTED) return;
    }
  }

  /// Learns the user's name from plants that were added to the user's own and are now in the list.
  #learnUser(added) {
    if (this.#permissions.user !== null) return;
    for (const { number, name } of added) {
      const [plant, ...others] = this.#garden.withId(number);
      if (others.length === 0 && plant?.name === name && plant.owner) return this.#permissions.learnUser(plant.owner);
    }
  }

  /// Returns the plant as the list has it: with its owner's name, if that is known.
  #listed(plant) {
    const { user } = this.#permissions;
    return plant.owner === undefined && user !== null ? plantOf({ ...plant, owner: user }) : plant;
  }

  #onReadFailure(failure) {
    if (failure.status === 401) this.#reject();
    else if (this.#garden.size === 0) this.#failure = failure;
    else this.#toasts.show(`This may be out of date. ${failure.message}`, { isError: true });
  }

  /// Brings up the plants, and takes the sign-in away if that is what was shown.
  #show() {
    if (!this.#api) return;
    const isEntering = !byId("sign-in").hidden;
    this.#signIn.hide();
    byId("garden").hidden = false;
    this.#render();
    // The Tab key starts at the beginning of the page.
    if (isEntering) byId("garden").focus();
  }

  #lookIfStale() {
    if (!this.#api || document.visibilityState !== "visible" || Date.now() - this.#readAt < STALE_AFTER) return;
    this.#readWhenSettled();
  }

  /// Reads the list again; while something is being deleted, which is still in the list of the server, not before that is done.
  #readWhenSettled() {
    this.#unsure = true;
    if (this.#leaving.size === 0) this.#read();
  }

  async #lookNow() {
    this.#permissions.forgetRoles();
    const [before, readBefore] = [this.#etag, this.#readAt];
    await this.#read();
    if (this.#readAt === readBefore) return;
    this.#toasts.show(before === this.#etag ? "Nothing has changed." : "Up to date.");
  }

  /// Goes on in a page that was left and is shown again: its deletions went out when it was left.
  async #comeBack() {
    this.#toasts.endAll();
    await Promise.all([...this.#leaving.values()].map(({ done }) => done));
    await this.#lookNow();
  }

  // Writing

  #openAdd() {
    const tags = this.#garden.tags().map(([tag]) => tag).filter(Boolean);
    const leaving = [...this.#leaving.values()].map(({ plant }) => plant);
    const { user } = this.#permissions;
    const owners = this.#garden.owners().filter((name) => name !== user);
    this.#addDialog.open({
      id: this.#garden.freeId(leaving),
      tag: this.#filter.tag,
      tags,
      owners: owners.map((name) => ({ name, isReadOnly: !this.#permissions.canChange(name) })),
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
    const added = this.#listed(plantOf(plant));
    const isListKnown = this.#failure === null;
    this.#garden.add(added);
    this.#unsure ||= this.#reader !== null;
    this.#failure = null;
    close();
    this.#render();
    this.#tellAdded(added, plant.owner);
    // The list says whose it is.
    if (added.owner === undefined && isListKnown) this.#readWhenSettled();
  }

  #tellAdded(plant, owner) {
    const place = this.#list.placeOf(plant);
    const whose = owner === undefined ? "" : ` to ${owner}’s plants`;
    const text = `${called(plant)} added${whose}.${place < 0 ? " The filter hides it." : ""}`;
    if (this.#permissions.canDelete(plant)) this.#toasts.offerUndo("added", { text, onUndo: () => this.#takeBack(plant) });
    else this.#toasts.show(text);
    if (place >= 0) this.#list.focusAt(place);
  }

  /// Tells of an addition that failed when nobody was looking at its form any more.
  #tellUnseen(plant, failure) {
    if (!this.#api) return;
    const outcome = failure.passes ? `It is not known whether ${called(plant)} was added.` : `${called(plant)} was not added.`;
    this.#toasts.show(`${outcome} ${failure.message}`, { isError: true });
  }

  #onWriteFailure(failure, { owner }) {
    if (failure.status === 401) return this.#reject();
    this.#permissions.learnRejection(failure, owner);
    this.#render();
  }

  /// Undoes an addition.
  #takeBack(added) {
    const plant = this.#listed(added);
    const deletion = { plant, key: newKey(), done: null };
    this.#leaving.set(plant.key, deletion);
    this.#removeFromSight(plant);
    deletion.done = this.#finish(deletion);
  }

  /// Takes a plant away here at once, and on the server when it cannot be undone any more: until then nothing is lost,
  /// whatever becomes of the network or of this tab, and undoing cannot fail.
  #delete(known) {
    const plant = this.#listed(known);
    if (!this.#garden.get(plant.key) || !this.#permissions.canDelete(plant)) return;
    const deletion = { plant, key: newKey(), done: null };
    this.#leaving.set(plant.key, deletion);
    this.#removeFromSight(plant);
    this.#toasts.offerUndo("deleted", {
      text: `${called(plant)} deleted.`,
      onUndo: () => this.#keep(plant),
      onEnd: () => (deletion.done = this.#finish(deletion)),
    });
  }

  #removeFromSight(plant) {
    const place = this.#list.placeOf(plant);
    this.#garden.remove(plant.key);
    this.#unsure ||= this.#reader !== null;
    this.#render();
    if (place >= 0 && !this.#list.focusAt(place, ".delete")) byId(byId("nothing").hidden ? "query" : "nothing-action").focus();
  }

  #keep(plant) {
    this.#leaving.delete(plant.key);
    this.#garden.add(this.#listed(plant));
    this.#render();
    this.#list.focusAt(Math.max(0, this.#list.placeOf(this.#listed(plant))));
  }

  async #finish({ plant, key }) {
    await this.#send(plant, key);
    // A list that is being read may still have it.
    this.#unsure ||= this.#reader !== null;
    this.#leaving.delete(plant.key);
    if (this.#unsure && this.#leaving.size === 0) await this.#read();
  }

  /// Has the server remove it. If it will not, the plant is back.
  async #send(plant, key) {
    const api = this.#api;
    try {
      await api.remove(plant, key);
    } catch (failure) {
      // Signed out meanwhile, or somebody else was quicker: it is gone, as it was meant to be.
      if (api !== this.#api || failure.status === 404) return;
      this.#garden.add(plant);
      this.#onWriteFailure(failure, plant);
      if (api === this.#api) this.#toasts.show(`${called(plant)} was not deleted. ${failure.message}`, { isError: true });
    }
  }

  /// Sends them all, those on their way once more: under the same key, each is done once.
  #sendDeletions() {
    for (const { plant, key } of this.#leaving.values()) this.#api?.removeAndGo(plant, key);
  }

  // Showing

  /// Shows what the filter of an address finds.
  #apply(filter) {
    Object.assign(this.#filter, filter);
    byId("query").value = this.#filter.query;
    this.#render();
  }

  #narrow(change) {
    Object.assign(this.#filter, change);
    this.#address.write(this.#filter);
    this.#keepView();
    this.#render();
  }

  #setView(view) {
    this.#view = view;
    this.#keepView();
    this.#render();
  }

  #keepView() {
    keep(VIEW_KEY, JSON.stringify({ view: this.#view, sort: this.#filter.sort }));
  }

  #recallView() {
    const { view, sort } = JSON.parse(recall(VIEW_KEY) ?? "{}");
    this.#view = view ?? this.#view;
    this.#filter.sort = byId("sort").value = sort ?? this.#filter.sort;
  }

  #showAll() {
    this.#clearSearch();
    this.#narrow({ tag: null, owner: null });
    byId("query").focus();
  }

  #render() {
    const found = this.#garden.select(this.#filter);
    const [isReading, isFirst, permissions] = [this.#reader !== null, this.#etag === null, this.#permissions];
    byId("plants").hidden = found.length === 0;
    const state = { garden: this.#garden, found: found.length, filter: this.#filter, unsearched: this.#unsearched };
    this.#overview.render({ ...state, failure: this.#failure, permissions, isReading, isFirst });
    for (const view of ["cards", "table"]) byId(`as-${view}`).setAttribute("aria-pressed", String(view === this.#view));
    if (byId("garden").hidden) return;
    const owners = this.#garden.owners().length > 1;
    this.#list.show(found, { view: this.#view, owners, canDelete: (plant) => permissions.canDelete(plant) });
  }

  #tellTrouble(trouble) {
    const words = trouble ? `${trouble.failure.message} Trying again in ${secondsUntil(trouble.until)}.` : "";
    byId("trouble").hidden = words === "";
    byId("trouble-text").textContent = words;
    this.#signIn.tellTrouble(words);
    this.#addDialog.tellTrouble(words);
  }
}

function secondsUntil(moment) {
  return count(Math.max(1, Math.round((moment - Date.now()) / 1_000)), "second");
}

new Console().start();
