// Actions on the console for its tests, and the state of the server.

import assert from "node:assert/strict";
import { BASE_URL, TIMEOUT, TOKEN, openPage } from "./browser.mjs";

/// Calls the service directly, without the page.
export async function call(method, path, { token = TOKEN, body } = {}) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const response = await fetch(BASE_URL + path, { method, headers, body });
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.text();
}

export const plant = (id, name, tag) => call("POST", "/plants", { body: `{"id":${id},"name":${JSON.stringify(name)},"tag":${JSON.stringify(tag)}}` });

/// Returns the server's list as text, because ids do not fit into JavaScript numbers.
export const stored = (token = TOKEN) => call("GET", "/plants?include=id", { token });

/// Waits until a condition is true. `what` completes "timed out waiting for …".
export async function until(what, condition) {
  const start = Date.now();
  while (!(await condition())) {
    assert.ok(Date.now() - start < TIMEOUT, `timed out waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/// Opens a page and signs in.
export async function signedIn(browser, { token = TOKEN, ...options } = {}) {
  const page = await openPage(browser, options);
  await page.goto("/");
  await signIn(page, token);
  await page.locator("#garden").waitFor();
  await page.locator("#progress").waitFor({ state: "hidden" });
  return page;
}

export async function signIn(page, token) {
  await page.getByLabel("Access token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

/// Reloads the page once no dialog is open and its history entry is left: `history.back()` would abort the reload.
export async function reload(page) {
  const isClosed = () => document.querySelector("dialog[open]") === null && !history.state?.isDialog;
  await until("the dialog to be closed", () => page.evaluate(isClosed));
  await page.reload();
}

/// Fills in the form for a new plant and submits it, with the suggested id if none is given.
export async function add(page, { id, name, tag }) {
  await page.getByRole("button", { name: "Add a plant" }).first().click();
  const form = page.getByRole("dialog", { name: "Add a plant" });
  await form.getByLabel("Name").fill(name);
  if (tag !== undefined) await form.getByLabel("Tag").fill(tag);
  if (id !== undefined) await form.getByLabel("Id").fill(id);
  await form.getByRole("button", { name: "Add", exact: true }).click();
  return form;
}

/// Locates the card or row of this plant.
export const shown = (page, name) => page.locator("[data-key]").filter({ has: page.getByRole("button", { name, exact: true }) });

export const toast = (page, text) => page.locator(".toast", { hasText: text });

/// Dismisses the message with the undo button, so that the deletion is sent.
export const dismiss = (page, text) => toast(page, text).getByRole("button", { name: "Dismiss" }).click();
