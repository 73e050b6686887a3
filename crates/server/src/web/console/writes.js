// The writes of the user: adding, editing and deleting plants, and undoing that.

import { PlantForm, newKey } from "./dialogs.js";
import { byId } from "./dom.js";
import { plantOf } from "./garden.js";
import { called, count } from "./text.js";

/// Deletions that are in flight at a time.
const CONCURRENT_DELETIONS = 6;
/// Deletions that a browser sends after the page is closed.
const SENT_AFTER_CLOSE = 200;

export class Writes {
  #permissions;
  #list;
  #toasts;
  #page;
  #form;
  /// Deletions that can still be undone or have no response yet, by the plant's key.
  #pending = new Map();
  /// Resolves when all changes that were undone are stored.
  #undoing = Promise.resolve();

  /// `page` has the `api`, the `garden` and the `filter`; `open` opens a dialog, `render` shows the garden, `onWrite` is called after every
  /// write, and `isRejected` returns true for the failure of a token that is not valid any more.
  constructor(permissions, { list, toasts, page }) {
    this.#permissions = permissions;
    this.#list = list;
    this.#toasts = toasts;
    this.#page = page;
    this.#form = new PlantForm({
      open: page.open,
      onSubmit: (plant, key, options) => this.#save(plant, key, options),
      onFailedUnseen: (plant, failure, done) => this.#showFailedSave(plant, failure, done),
      onTryNow: () => page.api.tryNow(),
    });
  }

  get form() {
    return this.#form;
  }

  /// True if closing the page would lose deletions.
  get isBusy() {
    return this.#pending.size > SENT_AFTER_CLOSE;
  }

  isDeleting(key) {
    return this.#pending.has(key);
  }

  /// Drops all pending deletions.
  clear() {
    this.#pending.clear();
  }

  /// Resolves when all deletions that are being sent have their responses.
  async settled() {
    await Promise.all([...this.#pending.values()].map(({ done }) => done));
  }

  /// Removes the plants whose deletion is pending from a new list of the server, and learns what others have done to them. A plant that is
  /// missing in a list that `isComplete` is gone.
  hideDeleted(garden, isComplete) {
    for (const deletion of this.#pending.values()) {
      const { key } = deletion.plant;
      deletion.isGone = isComplete && !garden.get(key);
      deletion.plant = garden.get(key) ?? deletion.plant;
      garden.remove(key);
    }
  }

  openEdit(plant) {
    const edited = this.#page.garden.get(plant.key);
    if (edited && this.#permissions.canEdit(edited)) this.#form.edit(edited, this.#knownTags());
  }

  #knownTags() {
    return this.#page.garden.tags().map(([tag]) => tag).filter(Boolean);
  }

  openAdd() {
    const leaving = [...this.#pending.values()].map(({ plant }) => plant);
    const { user } = this.#permissions;
    this.#form.add({
      freeId: (owner = user) => this.#page.garden.freeId(owner, leaving),
      tag: this.#page.filter.tag,
      tags: this.#knownTags(),
      owners: this.#permissions.otherOwners(this.#page.garden).map((name) => ({ name, isReadOnly: !this.#permissions.canChange(name) })),
      owner: this.#page.filter.owner,
    });
  }

  /// Stores a new plant, or another name and tag of one that exists.
  async #save(plant, key, { isEdit, close }) {
    const api = this.#page.api;
    try {
      await (isEdit ? api.replace(plant, key) : api.create(plant, key));
    } catch (failure) {
      if (api === this.#page.api) this.#onWriteFailure(failure, plant);
      throw failure;
    }
    // Signed out meanwhile.
    if (api !== this.#page.api) return;
    const stored = plantOf({ ...plant, owner: plant.owner ?? this.#permissions.user });
    const before = this.#page.garden.get(stored.key);
    this.#put(stored);
    close();
    this.#page.render();
    if (isEdit) this.#showChange(stored, before);
    else this.#showAddition(stored, plant.owner);
  }

  /// Puts a plant that is stored on the server into the list.
  #put(plant) {
    this.#page.garden.add(plant);
    this.#page.onWrite();
  }

  #showAddition(plant, owner) {
    const whose = owner === undefined ? "" : ` to ${owner}’s plants`;
    const text = `${called(plant)} added${whose}.${this.#focusOn(plant)}`;
    if (this.#permissions.canDelete(plant)) this.#toasts.offerUndo("added", { text, onUndo: () => this.#undoAddition(plant) });
    else this.#toasts.show(text);
  }

  #showChange(plant, before) {
    const text = `${called(plant)} saved.${this.#focusOn(plant)}`;
    if (before) this.#toasts.offerUndo("saved", { text, onUndo: () => this.#undoChange(plant, before) });
    else this.#toasts.show(text);
  }

  /// Focuses a plant; if it is not shown, returns a sentence about the reason.
  #focusOn(plant) {
    const place = this.#list.indexOf(plant);
    if (place >= 0) this.#list.focusAt(place);
    return place >= 0 ? "" : " The filter hides it.";
  }

  /// Shows the failure of a form that is closed.
  #showFailedSave(plant, failure, done) {
    if (!this.#page.api) return;
    const outcome = failure.isTransient ? `It is not known whether ${called(plant)} was ${done}.` : `${called(plant)} was not ${done}.`;
    this.#toasts.show(`${outcome} ${failure.message}`, { isError: true });
  }

  #onWriteFailure(failure, { owner }) {
    if (this.#page.isRejected(failure)) return;
    this.#permissions.learnRejection(failure, owner);
    this.#page.render();
  }

  /// Undoes an addition.
  #undoAddition(plant) {
    const [deletion] = this.#hide([plant]);
    deletion.done = this.#finishDeletions([deletion]);
  }

  /// Undoes a change, unless the plant has changed again. Changes are undone one after the other.
  #undoChange(plant, before) {
    const api = this.#page.api;
    if (this.#page.garden.get(plant.key) !== plant) return this.#toasts.show(`${called(plant)} has changed again: nothing was undone.`, { isError: true });
    this.#page.garden.add(before);
    this.#page.render();
    this.#focusOn(before);
    this.#undoing = this.#undoing.then(async () => {
      let failure;
      await api.replace(before, newKey()).catch((caught) => (failure = caught));
      if (api !== this.#page.api) return;
      this.#put(failure ? plant : before);
      this.#page.render();
      if (!failure) return;
      this.#onWriteFailure(failure, plant);
      this.#showFailedSave(before, failure, "restored");
    });
  }

  /// Removes plants from the page at once, and from the server when the time to undo is over. So undoing needs no request and
  /// cannot fail.
  delete(plants) {
    const deletions = this.#hide(plants.filter((plant) => this.#page.garden.get(plant.key) && this.#permissions.canDelete(plant)));
    if (deletions.length === 0) return;
    const [{ plant }] = deletions;
    this.#list.selection.end();
    this.#toasts.offerUndo("deleted", {
      text: deletions.length === 1 ? `${called(plant)} deleted.` : `${count(deletions.length, "plant")} deleted.`,
      size: deletions.length,
      onUndo: () => this.#undoDeletions(deletions),
      onEnd: () => {
        const done = this.#finishDeletions(deletions);
        for (const deletion of deletions) deletion.done = done;
      },
    });
  }

  /// Hides plants, and returns their pending deletions.
  #hide(plants) {
    const deletions = plants.map((plant) => ({ plant, key: newKey(), isGone: false, done: null }));
    const places = plants.map((plant) => this.#list.indexOf(plant)).filter((place) => place >= 0);
    for (const deletion of deletions) {
      this.#pending.set(deletion.plant.key, deletion);
      this.#page.garden.remove(deletion.plant.key);
    }
    this.#page.render();
    const place = Math.min(...places);
    if (places.length > 0 && !this.#list.focusAt(place, ".delete")) byId(byId("nothing").hidden ? "query" : "nothing-action").focus();
    return deletions;
  }

  #undoDeletions(deletions) {
    for (const { plant } of deletions) this.#pending.delete(plant.key);
    const [gone, plants] = [true, false].map((isGone) => deletions.filter((deletion) => deletion.isGone === isGone).map(({ plant }) => plant));
    this.#page.garden.add(...plants);
    this.#page.render();
    if (plants.length > 0) this.#list.focusAt(Math.max(0, this.#list.indexOf(plants[0])));
    const what = gone.length === 1 ? called(gone[0]) : count(gone.length, "plant");
    if (gone.length > 0) this.#toasts.show(`Another client has deleted ${what} meanwhile.`, { isError: true });
  }

  /// Sends deletions, a few at a time.
  async #finishDeletions(deletions) {
    const [queue, failures] = [[...deletions], []];
    const work = async () => {
      for (let deletion = queue.shift(); deletion; deletion = queue.shift()) await this.#finishDeletion(deletion, failures);
    };
    await Promise.all(Array.from({ length: CONCURRENT_DELETIONS }, work));
    if (failures.length === 0) return;
    const [{ plant, failure }] = failures;
    const what = failures.length === 1 ? `${called(plant)} was` : `${count(failures.length, "plant")} were`;
    this.#toasts.show(`${what} not deleted. ${failure.message}`, { isError: true });
  }

  /// Deletes a plant on the server. If that fails, the plant is shown again, and the failure is added to the others.
  async #finishDeletion(deletion, failures) {
    const [api, { plant, key }] = [this.#page.api, deletion];
    // Signed out, with the deletion being sent.
    if (this.#pending.get(plant.key) !== deletion) return;
    try {
      await api.remove(plant, key);
    } catch (failure) {
      // Signed out meanwhile, or another client has deleted the plant.
      if (api === this.#page.api && failure.status !== 404) {
        this.#page.garden.add(plant);
        this.#onWriteFailure(failure, plant);
        if (api === this.#page.api) failures.push({ plant, failure });
      }
    }
    if (api !== this.#page.api) return;
    // A list that is being read may still contain the plant.
    this.#page.onWrite();
    this.#pending.delete(plant.key);
  }

  /// Sends all pending deletions. One that is already in flight is sent again with the same key and executed once.
  sendDeletions() {
    for (const { plant, key } of this.#pending.values()) this.#page.api?.removeWithoutWaiting(plant, key);
  }
}
