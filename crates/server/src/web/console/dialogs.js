// The dialogs: a new plant, all there is to know of one, and the keys.

import { drawingOf, hueOf } from "./drawing.js";
import { faultsIn, faultsOf } from "./rules.js";

const FIELDS = ["name", "tag", "id"];
/// Tags offered while one is typed.
const OFFERED = 50;

const byId = (id) => document.getElementById(id);

/// Puts a message where it belongs; "" takes it away.
export function tell(element, message) {
  element.textContent = message;
  element.hidden = message === "";
}

/// A name that no other request has. Not `randomUUID`, which plain HTTP beyond this machine does not have.
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function closeOnDemand(dialog) {
  for (const button of dialog.querySelectorAll("[data-close]")) button.addEventListener("click", () => dialog.close());
}

function closeOnBackdrop(dialog) {
  dialog.addEventListener("click", ({ target }) => {
    if (target === dialog) dialog.close();
  });
}

export class AddDialog {
  #dialog = byId("add-dialog");
  #form = byId("add-form");
  #open;
  #onSubmit;
  #onUnseen;
  /// Counts the times it was opened: an answer may come when the form has been opened for another plant.
  #round = 0;
  /// What was sent and not answered for good: sent again, it goes under the same key.
  #unanswered = null;

  /// `open` opens a dialog; `onSubmit` gets the plant, a key, and what closes the form, and throws a `Failure`; `onUnseen` gets
  /// a plant and its failure when the form has gone meanwhile; `onTryNow` cuts short what is waited for.
  constructor({ open, onSubmit, onUnseen, onTryNow }) {
    this.#open = open;
    this.#onSubmit = onSubmit;
    this.#onUnseen = onUnseen;
    byId("add-try-now").addEventListener("click", onTryNow);
    closeOnDemand(this.#dialog);
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#form.addEventListener("input", ({ target }) => {
      if (target.getAttribute("aria-invalid")) this.#mark(this.#faults(), [target.name]);
    });
  }

  /// `owners` are the others whose plants are in sight, each with its `name` and whether it `isReadOnly`; `owner` is the one
  /// that is chosen at first, if it can be.
  open({ id, tag, tags, owners, owner }) {
    this.#round += 1;
    this.#wait(false);
    this.#form.reset();
    this.#mark({});
    tell(byId("add-error"), "");
    this.#field("id").value = id;
    this.#field("tag").value = tag ?? "";
    byId("known-tags").replaceChildren(...tags.slice(0, OFFERED).map((known) => new Option("", known)));
    byId("add-owner-choice").hidden = owners.length === 0;
    byId("add-owner").replaceChildren(new Option("My own", ""), ...owners.map(ownerOption));
    byId("add-owner").value = owners.some(({ name, isReadOnly }) => name === owner && !isReadOnly) ? owner : "";
    this.#open(this.#dialog);
    this.#field("name").focus();
  }

  /// Shows why the answer takes so long; "" when nothing is waited for.
  tellTrouble(words) {
    const isWaiting = byId("add-button").getAttribute("aria-disabled") === "true";
    byId("add-trouble-text").textContent = isWaiting ? words : "";
    byId("add-trouble").hidden = !isWaiting || words === "";
  }

  #field(name) {
    return this.#form.elements[name];
  }

  #plant() {
    const [name, tag, id] = FIELDS.map((field) => this.#field(field).value);
    const owner = this.#field("owner").value || undefined;
    return { id: id.trim(), name, tag: tag === "" ? undefined : tag, owner };
  }

  #faults() {
    return faultsOf(this.#plant());
  }

  /// Shows what is wrong at the fields it is wrong with; says whether anything is.
  #mark(faults, fields = FIELDS) {
    for (const field of fields) {
      const fault = faults[field] ?? "";
      byId(`add-${field}-error`).textContent = fault;
      if (fault) this.#field(field).setAttribute("aria-invalid", "true");
      else this.#field(field).removeAttribute("aria-invalid");
    }
    const first = FIELDS.find((field) => faults[field]);
    return first !== undefined;
  }

  #focusFault() {
    this.#form.querySelector("[aria-invalid]")?.focus();
  }

  async #submit() {
    if (byId("add-button").getAttribute("aria-disabled") === "true") return;
    tell(byId("add-error"), "");
    if (this.#mark(this.#faults())) return this.#focusFault();
    const plant = this.#plant();
    plant.id = String(BigInt(plant.id));
    const sent = JSON.stringify(plant);
    const key = this.#unanswered?.sent === sent ? this.#unanswered.key : newKey();
    const round = this.#round;
    const isOpen = () => this.#dialog.open && round === this.#round;
    this.#wait(true);
    try {
      await this.#onSubmit(plant, key, () => isOpen() && this.#dialog.close());
      this.#unanswered = null;
    } catch (failure) {
      this.#unanswered = failure.passes ? { sent, key } : null;
      if (isOpen()) this.#refuse(failure);
      else this.#onUnseen(plant, failure);
    } finally {
      if (round === this.#round) this.#wait(false);
    }
  }

  #refuse(failure) {
    const faults = failure.status === 400 ? faultsIn(failure.message) : { other: failure.message };
    if (failure.number === 40900) Object.assign(faults, { id: failure.message, other: "" });
    if (failure.passes) faults.other = `${failure.message} Press Add again to go on: it is added once, however often you do.`;
    tell(byId("add-error"), faults.other);
    this.#mark(faults);
    this.#focusFault();
  }

  #wait(waits) {
    const button = byId("add-button");
    // Not `disabled`, which would take the keyboard away from it.
    button.setAttribute("aria-disabled", String(waits));
    button.textContent = waits ? "Adding…" : "Add";
    if (!waits) this.tellTrouble("");
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
    const facts = [["Id", plant.id], ["Tag", plant.tag || "none"], ["Owner", plant.owner ?? "you"]];
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
