// The address and the history: filters survive a reload, Back closes dialogs, and links lead to the documentation and the
// keyboard shortcuts.

import assert from "node:assert/strict";
import { BASE_URL, TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { add, call, plant, shown, signIn, signedIn, stored, until } from "./garden.mjs";

const { BOB, PART } = process.env;

const names = (page) => page.locator("[data-key] .name").allTextContents();
const shows = (page, expected) => until(expected.join(", "), async () => JSON.stringify(await names(page)) === JSON.stringify(expected));
const fragment = (page) => new URL(page.url()).hash;

async function filters(browser) {
  for (const [id, name, tag] of [[1, "Ivy", "wall & roof"], [2, "Moss", "wall & roof"], [3, "Oak", ""]]) await plant(id, name, tag);
  await ask("share editor");
  await until("the grant to take effect", async () => (await stored(BOB)).includes("Moss"));
  await call("POST", "/plants", { token: BOB, body: '{"id":4,"name":"Ivory palm","tag":"wall & roof"}' });
  const page = await signedIn(browser, { token: BOB });
  await page.getByRole("searchbox").fill("iv");
  await page.getByRole("button", { name: "wall & roof" }).click();
  await page.getByLabel("Owner").selectOption("ada");
  await shows(page, ["Ivy"]);
  await until("the filter in the address", () => fragment(page) === "#q=iv&tag=wall+%26+roof&owner=ada");
  const requests = [];
  page.on("request", (request) => requests.push(request.url()));
  await page.reload();
  await shows(page, ["Ivy"]);
  assert.equal(await page.getByRole("searchbox").inputValue(), "iv");
  assert.equal(await page.getByRole("button", { name: "wall & roof" }).getAttribute("aria-pressed"), "true");
  assert.equal(await page.getByLabel("Owner").inputValue(), "ada");
  const everything = [page.url(), await page.evaluate("JSON.stringify(history.state)"), ...requests].join("\n");
  assert.ok(!everything.includes(BOB), "no address contains a token");
  assert.ok(!requests.some((url) => url.includes("q=iv")), "the search is not sent to the server");

  // The same address in another tab shows the same plants after signing in.
  const other = await openPage(browser);
  await other.goto(page.url());
  await signIn(other, BOB);
  await shows(other, ["Ivy"]);
  other.check();

  // A changed address takes effect without a reload. An empty tag selects plants without a tag.
  await page.evaluate("location.hash = '#tag='");
  await shows(page, ["Oak"]);
  assert.equal(await page.getByRole("searchbox").inputValue(), "");
  await page.goBack();
  await shows(page, ["Ivy"]);
  // The link "Skip to the plants" does not change the filter.
  await page.locator("#skip").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Ivy");
  assert.equal(fragment(page), "#q=iv&tag=wall+%26+roof&owner=ada");
  // Signing out removes the filter from the address.
  await page.getByRole("button", { name: "Sign out" }).click();
  await until("an address without a filter", () => page.url() === `${BASE_URL}/`);
  await signIn(page, BOB);
  await shows(page, ["Ivy", "Moss", "Oak", "Ivory palm"]);
  page.check();
}

async function back(browser) {
  await plant(1, "Ivy", "wall");
  const page = await openPage(browser);
  // Chromium requests an icon on its own.
  page.tolerate(/status of 401/);
  await page.goto("/livez");
  await page.goto("/");
  await signIn(page, TOKEN);
  await shown(page, "Ivy").waitFor();
  await page.getByRole("searchbox").fill("ivy");
  await until("the filter in the address", () => fragment(page) === "#q=ivy");
  await page.getByRole("searchbox").blur();
  const dialog = page.locator("dialog[open]");
  const actions = [
    () => page.getByRole("button", { name: "Add a plant" }).click(),
    () => page.getByRole("button", { name: "Ivy", exact: true }).click(),
    () => page.keyboard.press("?"),
  ];
  for (const open of actions) {
    await open();
    await dialog.waitFor();
    await page.goBack();
    await dialog.waitFor({ state: "hidden" });
    await shows(page, ["Ivy"]);
    assert.equal(fragment(page), "#q=ivy");
  }
  // A closed dialog leaves no history entry, even if the next one is opened immediately.
  for (const open of [...actions, ...actions]) {
    await open();
    await dialog.waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "hidden" });
  }
  await page.getByRole("button", { name: "Add a plant" }).click();
  await dialog.getByLabel("Name").fill("Ivy geranium");
  await page.keyboard.press("Enter");
  await shown(page, "Ivy geranium").waitFor();
  // A reload closes an open dialog.
  await page.getByRole("button", { name: "Ivy geranium", exact: true }).click();
  await dialog.waitFor();
  await page.reload();
  await shown(page, "Ivy geranium").waitFor();
  await until("the history entry of the dialog to be removed", () => page.evaluate("history.state === null"));
  assert.equal(await dialog.count(), 0);
  await page.goBack();
  await until("the previous page", () => page.url() === `${BASE_URL}/livez`);
  page.check();
}

async function help(browser) {
  await plant(1, "Ivy", "wall");
  const page = await signedIn(browser);
  for (const open of [() => page.keyboard.press("?"), () => page.getByRole("button", { name: "Keyboard shortcuts" }).click()]) {
    await open();
    const keys = page.getByRole("dialog", { name: "Keyboard shortcuts" });
    await keys.waitFor();
    const listed = await keys.locator("kbd").allTextContents();
    for (const key of ["/", "n", "←", "Home", "End", "Enter", "e", "Delete", "x", "Shift", "Ctrl", "A", "Z", "Escape", "?"]) assert.ok(listed.includes(key), key);
    await checkAccessibility(page, "the keys");
    await picture(page, "keys");
    await page.keyboard.press("Escape");
    await keys.waitFor({ state: "hidden" });
  }
  // In a text field, `?` is a character.
  await page.getByRole("searchbox").press("?");
  assert.equal(await page.getByRole("searchbox").inputValue(), "?");
  assert.equal(await page.locator("dialog[open]").count(), 0);

  await page.getByRole("link", { name: "API docs" }).click();
  await page.waitForURL("**/docs");
  await page.getByText("Requests use the token that you are signed in with.").waitFor();
  await page.getByRole("link", { name: "Back to the plants" }).click();
  await shown(page, "Ivy").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("link", { name: "API documentation" }).click();
  await page.locator("#operations-plants-createPlant").waitFor();
  assert.equal(await page.locator("#token-note").isVisible(), false, "signed out");
  page.check();
}

main(() => withBrowser({ filters, back, help }[PART]));
