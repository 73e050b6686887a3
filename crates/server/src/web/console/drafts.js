// Form fields that the user had filled in when the token ended. They are stored for this tab, until the same user has signed in again.

import { load, remove, store } from "./storage.js";

const DRAFT_KEY = "plantstore-draft";
const FORMS = ["add-form", "token-form", "share-form"];

/// Stores the fields of the open form.
export function storeDraft(user) {
  const form = document.querySelector("dialog[open] form:not([hidden])");
  // Not the property `id`, which a field of that name hides.
  const id = form?.getAttribute("id");
  if (FORMS.includes(id)) store(DRAFT_KEY, JSON.stringify({ user, form: id, fields: [...new FormData(form)] }));
}

/// Returns the stored form (`form`, `fields`) of this user, and removes it; `null` if there is none.
export function takeDraft(user) {
  const draft = JSON.parse(load(DRAFT_KEY) ?? "null");
  forgetDraft();
  return draft?.user === user ? draft : null;
}

export function hasDraft() {
  return load(DRAFT_KEY) !== null;
}

export function forgetDraft() {
  remove(DRAFT_KEY);
}

/// Fills in the form again.
export function restoreDraft({ form, fields }) {
  for (const control of document.getElementById(form).elements) {
    const values = fields.filter(([name]) => name === control.name).map(([, value]) => value);
    if (["checkbox", "radio"].includes(control.type)) control.checked = !control.disabled && values.includes(control.value);
    else if (control.tagName === "SELECT" && ![...control.options].some(({ value }) => value === values[0])) continue;
    else if (values.length > 0) [control.value] = values;
  }
}
