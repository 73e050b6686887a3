// Actions on the console for its tests, and the state of the server.

import assert from "node:assert/strict";
import { BASE_URL, TOKEN, openPage } from "./browser.mjs";

/// A call to the service that does not go through the page.
export async function call(method, path, { token = TOKEN, body } = {}) {
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
  const response = await fetch(BASE_URL + path, { method, headers, body });
  assert.ok(response.ok, `${method} ${path}: ${response.status}`);
  return response.text();
}

export const plant = (id, name, tag) => call("POST", "/plants", { body: `{"id":${id},"name":${JSON.stringify(name)},"tag":${JSON.stringify(tag)}}` });

/// The list as the server has it, as text: ids do not fit into numbers.
export const stored = (token = TOKEN) => call("GET", "/plants?include=id", { token });

/// Waits until a condition holds.
export async function until(what, condition) {
  const start = Date.now();
  while (!(await condition())) {
    assert.ok(Date.now() - start < 30_000, `timed out waiting for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/// A page that is signed in.
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

/// Fills in the form for a new plant and sends it; without an id, with the one it suggests.
export async function add(page, { id, name, tag }) {
  await page.getByRole("button", { name: "Add a plant" }).first().click();
  const form = page.getByRole("dialog", { name: "Add a plant" });
  await form.getByLabel("Name").fill(name);
  if (tag !== undefined) await form.getByLabel("Tag").fill(tag);
  if (id !== undefined) await form.getByLabel("Id").fill(id);
  await form.getByRole("button", { name: "Add", exact: true }).click();
  return form;
}

/// The part of the page that shows this plant.
export const shown = (page, name) => page.locator("[data-key]").filter({ has: page.getByRole("button", { name, exact: true }) });

export const toast = (page, text) => page.locator(".toast", { hasText: text });

/// Ends the time in which a deletion can be undone.
export const dismiss = (page, text) => toast(page, text).getByRole("button", { name: "Dismiss" }).click();
