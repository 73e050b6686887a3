// The dialogs: add a plant, details of a plant, and keyboard shortcuts.

import { byId, showMessage } from "./dom.js";
import { drawingOf, hueOf } from "./drawing.js";
import { fieldErrors, parseFieldErrors } from "./rules.js";

const FIELDS = ["name", "tag", "id"];
/// Maximum number of tags suggested while one is typed.
const SUGGESTED_TAGS_MAX = 50;

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

export class AddDialog {
  #dialog = byId("add-dialog");
  #form = byId("add-form");
  #open;
  #onSubmit;
  #onFailedUnseen;
  /// Number of times the dialog was opened: a response may arrive when the form is open for another plant.
  #openCount = 0;
  #freeId;
  /// The id that was filled in; another one was typed by the user.
  #suggested = "";
  /// The last request with an unknown outcome. If the same plant is sent again, the key is the same.
  #unknownOutcome = null;

  /// `open` opens a dialog; `onSubmit` is called with the plant, a key and a function that closes the form, and throws a
  /// `Failure`; `onFailedUnseen` is called with the plant and its failure if the form was closed meanwhile; `onTryNow` retries at once.
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
  open({ freeId, tag, tags, owners, owner }) {
    this.#openCount += 1;
    this.#wait(false);
    this.#form.reset();
    this.#mark({});
    showMessage(byId("add-error"), "");
    this.#freeId = freeId;
    this.#suggested = "";
    this.#field("tag").value = tag ?? "";
    byId("known-tags").replaceChildren(...tags.slice(0, SUGGESTED_TAGS_MAX).map((known) => new Option("", known)));
    byId("add-owner-choice").hidden = owners.length === 0;
    byId("add-owner").replaceChildren(new Option("My own", ""), ...owners.map(ownerOption));
    byId("add-owner").value = owners.some(({ name, isReadOnly }) => name === owner && !isReadOnly) ? owner : "";
    this.#suggestId();
    this.#open(this.#dialog);
    this.#field("name").focus();
  }

  /// Shows the failure that is being retried; "" for none.
  showRetry(words) {
    const isWaiting = byId("add-button").getAttribute("aria-disabled") === "true";
    byId("add-trouble-text").textContent = isWaiting ? words : "";
    byId("add-trouble").hidden = !isWaiting || words === "";
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
    const owner = this.#field("owner").value || undefined;
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
    if (byId("add-button").getAttribute("aria-disabled") === "true") return;
    showMessage(byId("add-error"), "");
    if (this.#mark(this.#errors())) return this.#focusError();
    const plant = this.#plant();
    plant.id = String(BigInt(plant.id));
    const sent = JSON.stringify(plant);
    const key = this.#unknownOutcome?.sent === sent ? this.#unknownOutcome.key : newKey();
    const openCount = this.#openCount;
    const isOpen = () => this.#dialog.open && openCount === this.#openCount;
    this.#wait(true);
    try {
      await this.#onSubmit(plant, key, () => isOpen() && this.#dialog.close());
      this.#unknownOutcome = null;
    } catch (failure) {
      this.#unknownOutcome = failure.isTransient ? { sent, key } : null;
      if (isOpen()) this.#showFailure(failure);
      else this.#onFailedUnseen(plant, failure);
    } finally {
      if (openCount === this.#openCount) this.#wait(false);
    }
  }

  #showFailure(failure) {
    const errors = failure.status === 400 ? parseFieldErrors(failure.message) : { other: failure.message };
    if (failure.code === 40900) Object.assign(errors, { id: failure.message, other: "" });
    if (failure.isTransient) errors.other = `${failure.message} Press Add again to go on: it is added once, however often you do.`;
    showMessage(byId("add-error"), errors.other);
    this.#mark(errors);
    this.#focusError();
  }

  #wait(waits) {
    const button = byId("add-button");
    // Not `disabled`, which would take the keyboard away from it.
    button.setAttribute("aria-disabled", String(waits));
    button.textContent = waits ? "Adding…" : "Add";
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
  #plant;

  /// `open` opens a dialog; `onDelete` gets the plant.
  constructor({ open, onDelete }) {
    this.#open = open;
    closeOnDemand(this.#dialog);
    closeOnBackdrop(this.#dialog);
    byId("plant-delete").addEventListener("click", () => {
      this.#dialog.close();
      onDelete(this.#plant);
    });
  }

  open(plant, { canDelete }) {
    this.#plant = plant;
    byId("plant-delete").hidden = !canDelete;
    this.#dialog.style.setProperty("--tint", String(hueOf(plant.tag)));
    this.#dialog.querySelector(".drawing").replaceChildren(drawingOf(plant));
    byId("plant-name").textContent = plant.name;
    const facts = [["Id", plant.id], ["Tag", plant.tag || "none"], ["Owner", plant.owner]];
    byId("plant-facts").replaceChildren(...facts.flatMap(([term, value]) => pair(term, value)));
    this.#open(this.#dialog);
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
