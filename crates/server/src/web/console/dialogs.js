// The dialogs: add or edit a plant, details of a plant, and keyboard shortcuts.

import { byId, showMessage } from "./dom.js";
import { drawingOf, hueOf } from "./drawing.js";
import { fieldErrors, parseFieldErrors } from "./rules.js";
import { called } from "./text.js";

const FIELDS = ["name", "tag", "id"];
/// Maximum number of tags suggested while one is typed.
const SUGGESTED_TAGS_MAX = 50;
/// Words of the form for a new plant, and for one that exists.
const ADDING = { title: "Add a plant", button: "Add", waiting: "Adding…", done: "added" };
const EDITING = { title: "Edit the plant", button: "Save", waiting: "Saving…", done: "saved" };
const DELETED_MEANWHILE = "It was deleted meanwhile, so it cannot be saved.";

/// Returns a new idempotency key. `randomUUID` cannot be used: browsers offer it only with HTTPS or on this machine.
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function closeOnDemand(dialog) {
  for (const button of dialog.querySelectorAll("[data-close]")) button.addEventListener("click", () => dialog.close());
}

export function closeOnBackdrop(dialog) {
  dialog.addEventListener("click", ({ target }) => {
    if (target === dialog) dialog.close();
  });
}

export class PlantForm {
  #dialog = byId("add-dialog");
  #form = byId("add-form");
  #open;
  #onSubmit;
  #onFailedUnseen;
  /// Number of times the dialog was opened: a response may arrive when the form is open for another plant.
  #openCount = 0;
  /// The plant that is edited, as it was last shown to the user; `null` while one is added.
  #edited = null;
  #freeId;
  /// The id that was filled in; another one was typed by the user.
  #suggested = "";
  /// The last request with an unknown outcome. If the same plant is sent again, the key is the same.
  #unknownOutcome = null;

  /// `open` opens a dialog; `onSubmit` is called with the plant, a key, a function that closes the form (`close`) and whether the plant
  /// exists (`isEdit`), and throws a `Failure`; `onFailedUnseen` is called with the plant, its failure and the word for what was tried, if
  /// the form was closed meanwhile; `onTryNow` retries at once.
  constructor({ open, onSubmit, onFailedUnseen, onTryNow }) {
    this.#open = open;
    this.#onSubmit = onSubmit;
    this.#onFailedUnseen = onFailedUnseen;
    byId("add-try-now").addEventListener("click", onTryNow);
    closeOnDemand(this.#dialog);
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("add-owner").addEventListener("change", () => this.#suggestId());
    this.#form.addEventListener("input", ({ target }) => {
      if (target.getAttribute("aria-invalid")) this.#mark(this.#errors(), [target.name]);
    });
  }

  /// `freeId` returns an id to suggest for a plant of an owner; `owners` are the other owners in the list, each with `name` and
  /// `isReadOnly`; `owner` is the one to preselect, if it can be chosen.
  add({ freeId, tag, tags, owners, owner }) {
    this.#begin(null, tags);
    this.#freeId = freeId;
    this.#field("tag").value = tag ?? "";
    byId("add-owner-choice").hidden = owners.length === 0;
    byId("add-owner").replaceChildren(new Option("My own", ""), ...owners.map(ownerOption));
    byId("add-owner").value = owners.some(({ name, isReadOnly }) => name === owner && !isReadOnly) ? owner : "";
    this.#suggestId();
    this.#show();
  }

  edit(plant, tags) {
    this.#begin(plant, tags);
    for (const field of FIELDS) this.#field(field).value = plant[field] ?? "";
    this.#field("edited").value = plant.key;
    byId("add-owner-choice").hidden = true;
    this.#show();
    this.#field("name").select();
  }

  /// Says so if another client has changed or deleted the plant that is being edited. What the user has typed stays.
  showCurrent(plantOfKey) {
    if (!this.#dialog.open || this.#edited === null || this.#isWaiting) return;
    const now = plantOfKey(this.#edited.key);
    if (now === this.#edited) return;
    const tag = now?.tag ? `, with the tag “${now.tag}”` : ", without a tag";
    const words = now ? `It was changed meanwhile: it is now ${called(now)}${tag}. Save replaces that.` : DELETED_MEANWHILE;
    if (now) this.#edited = now;
    showMessage(byId("add-error"), words);
  }

  #begin(edited, tags) {
    this.#openCount += 1;
    this.#edited = edited;
    this.#wait(false);
    this.#form.reset();
    this.#mark({});
    showMessage(byId("add-error"), "");
    this.#suggested = "";
    byId("add-title").textContent = this.#words.title;
    // The value of a hidden field is not reset with the form.
    this.#field("edited").value = "";
    this.#field("id").readOnly = edited !== null;
    byId("add-id-hint").hidden = edited !== null;
    byId("known-tags").replaceChildren(...tags.slice(0, SUGGESTED_TAGS_MAX).map((known) => new Option("", known)));
  }

  #show() {
    this.#open(this.#dialog);
    this.#field("name").focus();
  }

  get #words() {
    return this.#edited === null ? ADDING : EDITING;
  }

  get #isWaiting() {
    return byId("add-button").getAttribute("aria-disabled") === "true";
  }

  /// Shows the failure that is being retried; "" for none.
  showRetry(words) {
    byId("add-trouble-text").textContent = this.#isWaiting ? words : "";
    byId("add-trouble").hidden = !this.#isWaiting || words === "";
  }

  /// Fills in an id that is free for the chosen owner, unless the user has typed another.
  #suggestId() {
    if (this.#field("id").value !== this.#suggested) return;
    this.#field("id").value = this.#suggested = this.#freeId(this.#plant().owner);
  }

  #field(name) {
    return this.#form.elements[name];
  }

  #plant() {
    const [name, tag, id] = FIELDS.map((field) => this.#field(field).value);
    const owner = this.#edited?.owner ?? (this.#field("owner").value || undefined);
    return { id: id.trim(), name, tag: tag === "" ? undefined : tag, owner };
  }

  #errors() {
    return fieldErrors(this.#plant());
  }

  /// Shows the errors at their fields; returns true if there are any.
  #mark(errors, fields = FIELDS) {
    for (const field of fields) {
      const error = errors[field] ?? "";
      byId(`add-${field}-error`).textContent = error;
      if (error) this.#field(field).setAttribute("aria-invalid", "true");
      else this.#field(field).removeAttribute("aria-invalid");
    }
    const first = FIELDS.find((field) => errors[field]);
    return first !== undefined;
  }

  #focusError() {
    this.#form.querySelector("[aria-invalid]")?.focus();
  }

  async #submit() {
    if (this.#isWaiting) return;
    showMessage(byId("add-error"), "");
    if (this.#mark(this.#errors())) return this.#focusError();
    const plant = this.#plant();
    plant.id = String(BigInt(plant.id));
    const [edited, words] = [this.#edited, this.#words];
    if (edited?.name === plant.name && (edited.tag || undefined) === plant.tag) return this.#dialog.close();
    const sent = JSON.stringify([words.done, plant]);
    const key = this.#unknownOutcome?.sent === sent ? this.#unknownOutcome.key : newKey();
    const openCount = this.#openCount;
    const isOpen = () => this.#dialog.open && openCount === this.#openCount;
    this.#wait(true);
    try {
      await this.#onSubmit(plant, key, { isEdit: edited !== null, close: () => isOpen() && this.#dialog.close() });
      this.#unknownOutcome = null;
    } catch (failure) {
      this.#unknownOutcome = failure.isTransient ? { sent, key } : null;
      if (isOpen()) this.#showFailure(failure);
      else this.#onFailedUnseen(plant, failure, words.done);
    } finally {
      if (openCount === this.#openCount) this.#wait(false);
    }
  }

  #showFailure(failure) {
    const errors = failure.status === 400 ? parseFieldErrors(failure.message) : { other: failure.message };
    if (failure.code === 40900) Object.assign(errors, { id: failure.message, other: "" });
    const { button, done } = this.#words;
    if (this.#edited && failure.status === 404) errors.other = DELETED_MEANWHILE;
    if (failure.isTransient) errors.other = `${failure.message} Press ${button} again to go on: it is ${done} once, however often you do.`;
    showMessage(byId("add-error"), errors.other);
    this.#mark(errors);
    this.#focusError();
  }

  #wait(waits) {
    const button = byId("add-button");
    // Not `disabled`, which would take the keyboard away from it.
    button.setAttribute("aria-disabled", String(waits));
    button.textContent = waits ? this.#words.waiting : this.#words.button;
    if (!waits) this.showRetry("");
  }
}

function ownerOption({ name, isReadOnly }) {
  const option = new Option(isReadOnly ? `${name} (read only)` : name, name);
  option.disabled = isReadOnly;
  return option;
}

export class PlantDialog {
  #dialog = byId("plant-dialog");
  #open;
  #permissions;
  #plant;

  /// `open` opens a dialog; `onEdit` and `onDelete` get the plant.
  constructor(permissions, { open, onEdit, onDelete }) {
    this.#open = open;
    this.#permissions = permissions;
    closeOnDemand(this.#dialog);
    closeOnBackdrop(this.#dialog);
    for (const [id, action] of [["plant-edit", onEdit], ["plant-delete", onDelete]]) {
      byId(id).addEventListener("click", () => {
        this.#dialog.close();
        action(this.#plant);
      });
    }
    this.#dialog.addEventListener("keydown", (event) => {
      if (event.key !== "e" || event.ctrlKey || event.metaKey || event.altKey || byId("plant-edit").hidden) return;
      // Not typed into the form that opens.
      event.preventDefault();
      byId("plant-edit").click();
    });
  }

  open(plant) {
    this.#fill(plant);
    this.#open(this.#dialog);
  }

  /// Shows the plant as it is now, also if another client has changed or deleted it.
  showCurrent(plantOfKey) {
    if (!this.#dialog.open) return;
    const plant = plantOfKey(this.#plant.key);
    if (plant && plant !== this.#plant) this.#fill(plant);
    byId("plant-gone").hidden = plant !== undefined;
    if (!plant) this.#allow({ canEdit: false, canDelete: false });
  }

  #allow({ canEdit, canDelete }) {
    byId("plant-edit").hidden = !canEdit;
    byId("plant-delete").hidden = !canDelete;
  }

  #fill(plant) {
    this.#plant = plant;
    byId("plant-gone").hidden = true;
    this.#allow({ canEdit: this.#permissions.canEdit(plant), canDelete: this.#permissions.canDelete(plant) });
    this.#dialog.style.setProperty("--tint", String(hueOf(plant.tag)));
    this.#dialog.querySelector(".drawing").replaceChildren(drawingOf(plant));
    byId("plant-name").textContent = plant.name;
    const facts = [["Id", plant.id], ["Tag", plant.tag || "none"], ["Owner", plant.owner]];
    byId("plant-facts").replaceChildren(...facts.flatMap(([term, value]) => pair(term, value)));
  }
}

export class KeysDialog {
  #dialog = byId("keys-dialog");
  #open;

  constructor(open) {
    this.#open = open;
    closeOnDemand(this.#dialog);
    closeOnBackdrop(this.#dialog);
  }

  open() {
    this.#open(this.#dialog);
  }
}

function pair(term, value) {
  const [name, description] = [document.createElement("dt"), document.createElement("dd")];
  name.textContent = term;
  description.textContent = value;
  description.dir = "auto";
  return [name, description];
}
