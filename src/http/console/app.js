// The console: signs in, reads the plants, and shows what becomes of what a person does.

import { Api } from "./api.js";
import { AddDialog, PlantDialog, newKey } from "./dialogs.js";
import { drawingOf } from "./drawing.js";
import { Garden, plantOf } from "./garden.js";
import { PlantList } from "./list.js";
import { SignIn } from "./sign-in.js";
import { keep, recall } from "./storage.js";
import { Toasts } from "./toasts.js";

/// Plants that are kept here at the most; beyond them, the list is said to be cut.
const MOST = 50_000;
/// Tags shown at first, and after asking for all.
const FEW_TAGS = 12;
const MANY_TAGS = 100;
/// Coming back to the tab after this long is a reason to look again.
const STALE_AFTER = 15_000;
/// The characters of a name that a message repeats.
const NAME_SHOWN = 60;
const VIEW_KEY = "plantstore-view";

const byId = (id) => document.getElementById(id);
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const called = ({ name }) => (name.length > NAME_SHOWN ? `“${[...name].slice(0, NAME_SHOWN).join("")}…”` : `“${name}”`);

class Console {
  #api = null;
  #garden = new Garden();
  #etag = null;
  #readAt = 0;
  /// Who reads the list now.
  #reader = null;
  /// Whether what is known here may differ from the server's, because something was changed while the list was read.
  #unsure = false;
  #isCut = false;
  #refusal = null;
  /// Deletions that can still be undone or are not answered yet, by the plant's key.
  #leaving = new Map();
  #filter = { query: "", tag: null, owner: null, sort: "id" };
  #view = "cards";
  #allTags = false;

  #signIn = new SignIn((token) => this.#enter(token));
  #list = new PlantList(byId("plants"), {
    onOpen: (plant) => this.#plantDialog.open(plant),
    onDelete: (plant) => this.#delete(plant),
  });
  #toasts = new Toasts(byId("toasts"), () => byId("plants").focus());
  #addDialog = new AddDialog({
    onSubmit: (plant, key, close) => this.#add(plant, key, close),
    onUnseen: (plant, failure) => this.#tellUnseen(plant, failure),
  });
  #plantDialog = new PlantDialog((plant) => this.#delete(plant));

  start() {
    this.#recallView();
    this.#listen();
    this.#signIn.start();
  }

  #listen() {
    const onClick = (id, action) => byId(id).addEventListener("click", action);
    onClick("add", () => this.#openAdd());
    onClick("refresh", () => this.#lookNow());
    onClick("sign-out", () => this.#leave(""));
    onClick("try-now", () => this.#api.tryNow());
    onClick("as-cards", () => this.#setView("cards"));
    onClick("as-table", () => this.#setView("table"));
    byId("query").addEventListener("input", ({ target }) => this.#narrow({ query: target.value }));
    byId("sort").addEventListener("change", ({ target }) => this.#narrow({ sort: target.value }));
    byId("owner").addEventListener("change", ({ target }) => this.#narrow({ owner: target.value || null }));
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
      if (persisted && this.#api) this.#lookNow();
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
    else if (event.key === "n") this.#openAdd();
    else if (!isUndo) return;
    event.preventDefault();
  }

  #clearSearch() {
    byId("query").value = "";
    this.#narrow({ query: "" });
  }

  // Coming and going

  #enter(token) {
    this.#api = new Api(token, (trouble) => this.#tellTrouble(trouble));
    const read = this.#read();
    // With the token of this tab nobody waits at the door.
    if (byId("sign-in").hidden) this.#show();
    return read;
  }

  /// Forgets everything of whoever was here, and says why.
  #leave(reason) {
    // Who signs out means what they have deleted; whose token is refused can delete no more.
    if (!reason) this.#sendDeletions();
    this.#leaving.clear();
    this.#toasts.clear();
    this.#api?.end();
    this.#api = this.#reader = this.#etag = this.#refusal = null;
    this.#garden = new Garden();
    this.#list.clear();
    Object.assign(this.#filter, { query: "", tag: null, owner: null });
    byId("query").value = "";
    this.#isCut = this.#unsure = this.#allTags = false;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    byId("garden").hidden = true;
    this.#render();
    this.#tellTrouble();
    this.#signIn.show(reason);
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
    let etag = null;
    for await (const page of api.pages(this.#etag)) {
      if (api !== this.#api) return;
      etag ??= page.etag;
      garden.append(page.plants.map(plantOf));
      this.#isCut = garden.size >= MOST && page.hasNext;
      if (isFirst) this.#show();
      if (this.#isCut) break;
    }
    if (api !== this.#api) return;
    if (etag !== null) [this.#garden, this.#etag] = [garden, etag];
    // The server has them until their time is over.
    for (const key of this.#leaving.keys()) this.#garden.remove(key);
    this.#readAt = Date.now();
    this.#refusal = null;
  }

  #onReadFailure(failure) {
    if (failure.status === 401) this.#leave(failure.message);
    else if (this.#garden.size === 0) this.#refusal = failure;
    else this.#toasts.show(`This may be out of date. ${failure.message}`, { isError: true });
  }

  /// Brings up the plants, and takes the sign-in away if that is what was shown.
  #show() {
    if (!this.#api) return;
    this.#signIn.hide();
    byId("garden").hidden = false;
    this.#render();
  }

  #lookIfStale() {
    if (!this.#api || document.visibilityState !== "visible" || Date.now() - this.#readAt < STALE_AFTER) return;
    // What is being deleted is still in the list of the server.
    if (this.#leaving.size === 0) this.#read();
    else this.#unsure = true;
  }

  async #lookNow() {
    this.#toasts.endAll();
    await Promise.all([...this.#leaving.values()].map(({ done }) => done));
    const [before, readBefore] = [this.#etag, this.#readAt];
    await this.#read();
    if (this.#readAt === readBefore) return;
    this.#toasts.show(before === this.#etag ? "Nothing has changed." : "Up to date.");
  }

  // Writing

  #openAdd() {
    const tags = this.#garden.tags().map(([tag]) => tag).filter(Boolean);
    const leaving = [...this.#leaving.values()].map(({ plant }) => plant);
    this.#addDialog.open({ id: this.#garden.freeId(leaving), tag: this.#filter.tag, tags, owners: this.#garden.owners() });
  }

  async #add(plant, key, close) {
    const api = this.#api;
    try {
      await api.create(plant, key);
    } catch (failure) {
      if (api === this.#api && failure.status === 401) this.#leave(failure.message);
      throw failure;
    }
    // Signed out meanwhile.
    if (api !== this.#api) return;
    const added = plantOf(plant);
    this.#garden.add(added);
    this.#unsure ||= this.#reader !== null;
    this.#refusal = null;
    close();
    this.#render();
    const place = this.#list.placeOf(added);
    const hidden = place < 0 ? " The filter hides it." : "";
    this.#toasts.show(`${called(added)} added.${hidden}`, { onUndo: () => this.#takeBack(added) });
    if (place >= 0) this.#list.focusAt(place);
  }

  /// Tells of an addition that failed when nobody was looking at its form any more.
  #tellUnseen(plant, failure) {
    if (!this.#api) return;
    const outcome = failure.passes ? `It is not known whether ${called(plant)} was added.` : `${called(plant)} was not added.`;
    this.#toasts.show(`${outcome} ${failure.message}`, { isError: true });
  }

  /// Undoes an addition.
  #takeBack(plant) {
    const deletion = { plant, key: newKey(), done: null };
    this.#leaving.set(plant.key, deletion);
    this.#removeFromSight(plant);
    deletion.done = this.#finish(deletion);
  }

  /// Takes a plant away here at once, and on the server when it cannot be undone any more: until then nothing is lost,
  /// whatever becomes of the network or of this tab, and undoing cannot fail.
  #delete(plant) {
    if (!this.#garden.get(plant.key)) return;
    const deletion = { plant, key: newKey(), done: null };
    this.#leaving.set(plant.key, deletion);
    this.#removeFromSight(plant);
    this.#toasts.show(`${called(plant)} deleted.`, {
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
    this.#garden.add(plant);
    this.#render();
    this.#list.focusAt(Math.max(0, this.#list.placeOf(plant)));
  }

  async #finish({ plant, key }) {
    await this.#send(plant, key);
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
      if (failure.status === 401) return this.#leave(failure.message);
      this.#garden.add(plant);
      this.#render();
      this.#toasts.show(`${called(plant)} was not deleted. ${failure.message}`, { isError: true });
    }
  }

  /// Sends them all, those on their way once more: under the same key, each is done once.
  #sendDeletions() {
    for (const { plant, key } of this.#leaving.values()) this.#api?.removeAndGo(plant, key);
  }

  // Showing

  #narrow(change) {
    Object.assign(this.#filter, change);
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

  #render() {
    const owners = this.#garden.owners();
    const found = this.#garden.select(this.#filter);
    this.#renderHead(owners, found.length);
    this.#renderTags();
    for (const view of ["cards", "table"]) byId(`as-${view}`).setAttribute("aria-pressed", String(view === this.#view));
    if (!byId("garden").hidden) this.#list.show(found, { view: this.#view, owners: owners.length > 1 });
    byId("plants").hidden = found.length === 0;
    this.#renderNothing(found.length);
    byId("progress").hidden = !this.#reader;
    // There is nothing to find in nothing.
    document.querySelector(".controls").hidden = this.#garden.size === 0 && !this.#reader;
  }

  #renderHead(owners, found) {
    const known = this.#garden.size;
    byId("heading").textContent = headingOf(owners);
    const total = count(known, "plant");
    const cut = this.#isCut ? ". There are more: they are not shown, and not searched." : "";
    const state = this.#reader && this.#etag === null ? `${total} so far…` : total;
    const counted = (found === known ? state : `${found.toLocaleString("en")} of ${state}`) + cut;
    byId("count").textContent = this.#refusal ? "" : counted;
    const { owner: chosen } = this.#filter;
    // A choice whose plants are gone is still a choice, and must be seen to be taken back.
    const offered = chosen === null || owners.includes(chosen) ? owners : [...owners, chosen];
    byId("owner-choice").hidden = owners.length < 2 && chosen === null;
    setOptions(byId("owner"), [["Everybody", ""], ...offered.map((owner) => [owner, owner])], chosen ?? "");
  }

  #renderTags() {
    const tags = this.#garden.tags();
    const most = this.#allTags ? MANY_TAGS : FEW_TAGS;
    const shown = tags.slice(0, most);
    const { tag: chosen } = this.#filter;
    const isHidden = chosen !== null && !shown.some(([tag]) => tag === chosen);
    if (isHidden) shown.push(tags.find(([tag]) => tag === chosen) ?? [chosen, 0]);
    const focused = document.activeElement?.closest?.(".chip")?.dataset.tag;
    const chips = shown.map(([tag, number]) => this.#chip(tag, number));
    if (tags.length > FEW_TAGS) chips.push(this.#moreChip(tags.length));
    byId("tags").hidden = tags.length === 0 || (tags.length === 1 && tags[0][0] === "" && chosen === null);
    byId("tags").replaceChildren(...chips);
    if (focused !== undefined) chips.find(({ dataset }) => dataset.tag === focused)?.focus();
  }

  #chip(tag, number) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.dataset.tag = tag;
    chip.setAttribute("aria-pressed", String(tag === this.#filter.tag));
    const [name, amount] = [document.createElement("span"), document.createElement("span")];
    name.dir = "auto";
    name.className = "chip-name";
    name.textContent = tag || "no tag";
    amount.className = "amount";
    amount.textContent = number.toLocaleString("en");
    chip.append(name, " ", amount);
    chip.addEventListener("click", () => this.#narrow({ tag: tag === this.#filter.tag ? null : tag }));
    return chip;
  }

  #moreChip(number) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip more";
    chip.dataset.tag = "\n";
    chip.setAttribute("aria-expanded", String(this.#allTags));
    const more = number > MANY_TAGS ? `The ${MANY_TAGS} most used of ${number.toLocaleString("en")} tags` : `All ${number} tags`;
    chip.textContent = this.#allTags ? "Fewer tags" : more;
    chip.addEventListener("click", () => {
      this.#allTags = !this.#allTags;
      this.#render();
    });
    return chip;
  }

  #renderNothing(found) {
    const nothing = nothingOf(this.#refusal, this.#garden.size, this.#filter);
    const isShown = found === 0 && !this.#reader;
    byId("nothing").hidden = !isShown;
    // One button for it is enough.
    byId("add").hidden = isShown && nothing.action === "add";
    if (!isShown) return;
    const actions = {
      add: ["Add a plant", () => this.#openAdd()],
      clear: ["Show all plants", () => this.#showAll()],
      again: ["Try again", () => this.#read()],
      leave: ["Use another token", () => this.#leave("")],
    };
    const [label, action] = actions[nothing.action];
    byId("nothing-title").textContent = nothing.title;
    byId("nothing-text").textContent = nothing.text;
    byId("nothing-action").textContent = label;
    byId("nothing-action").onclick = action;
    byId("nothing").querySelector(".drawing").replaceChildren(drawingOf({ name: nothing.action, tag: "" }));
  }

  #showAll() {
    this.#clearSearch();
    this.#narrow({ tag: null, owner: null });
    byId("query").focus();
  }

  #tellTrouble(trouble) {
    const words = trouble ? `${trouble.failure.message} Trying again in ${secondsUntil(trouble.until)}.` : "";
    byId("trouble").hidden = words === "";
    byId("trouble-text").textContent = words;
    this.#signIn.tellTrouble(words);
  }
}

function secondsUntil(moment) {
  return count(Math.max(1, Math.round((moment - Date.now()) / 1_000)), "second");
}

function headingOf(owners) {
  if (owners.length === 0) return "Your plants";
  if (owners.length === 1) return `${owners[0]}’s plants`;
  return owners.length === 2 ? `Plants of ${owners[0]} and ${owners[1]}` : `Plants of ${owners.length} people`;
}

/// What to say where no plant is shown, and what to offer.
function nothingOf(refusal, known, { query, tag }) {
  if (refusal) return { title: "The plants cannot be shown", text: refusal.message, action: refusal.status === 403 ? "leave" : "again" };
  if (known === 0) return { title: "Nothing planted yet", text: "The first plant is one name away.", action: "add" };
  const what = query.trim() ? `“${query.trim()}”` : "this";
  const where = tag === null ? "" : ` among ${tag ? `“${tag}”` : "those without a tag"}`;
  return { title: `No plant matches ${what}${where}`, text: "Names, tags and ids are searched.", action: "clear" };
}

/// Changes a select only where it differs, so that one that is open stays open.
function setOptions(select, options, value) {
  const now = [...select.options].map(({ text, value: known }) => [text, known]);
  if (JSON.stringify(now) !== JSON.stringify(options)) select.replaceChildren(...options.map(([text, known]) => new Option(text, known)));
  select.value = value;
}

new Console().start();
