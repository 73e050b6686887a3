// Several plants are selected and deleted together, with one undo.

import assert from "node:assert/strict";
import { checkAccessibility, main, picture, withBrowser } from "./browser.mjs";
import { dismiss, plant, shown, signedIn, stored, toast, until } from "./garden.mjs";

const { PART, READS_ONLY } = process.env;
const NAMES = ["Aloe", "Basil", "Cedar", "Dill", "Elm", "Fern"];

const selected = (page) => page.locator(".picked .name").allTextContents();
const bar = (page) => page.getByRole("toolbar", { name: "Selected plants" });
const names = (page) => page.locator("[data-key] .name").allTextContents();
const card = (page, name, ...modifiers) => shown(page, name).click({ modifiers, position: { x: 60, y: 40 } });

async function planted() {
  for (const [index, name] of NAMES.entries()) await plant(index + 1, name, index < 3 ? "low" : "high");
}

async function pointer(browser) {
  await planted();
  const page = await signedIn(browser);
  const sent = [];
  page.on("request", (request) => request.method() === "DELETE" && sent.push(new URL(request.url()).pathname));
  for (const view of ["Cards", "Table"]) {
    await page.getByRole("button", { name: view }).click();
    await card(page, "Basil", "Control");
    await card(page, "Elm", "Shift");
    assert.deepEqual(await selected(page), ["Basil", "Cedar", "Dill", "Elm"]);
    // Another end of the same range, in the other direction.
    await card(page, "Aloe", "Shift");
    assert.deepEqual(await selected(page), ["Aloe", "Basil"]);
    await page.getByText("2 selected", { exact: true }).waitFor();
    // While plants are selected, a click selects and does not open.
    await card(page, "Dill");
    await page.getByRole("checkbox", { name: "Select Basil" }).click();
    assert.deepEqual(await selected(page), ["Aloe", "Dill"]);
    await checkAccessibility(page, `the selection in the ${view}`);
    await picture(page, `selection-${view.toLowerCase()}`);
    await bar(page).getByRole("button", { name: "Delete" }).click();
    await toast(page, "2 plants deleted.").waitFor();
    assert.deepEqual(await names(page), ["Basil", "Cedar", "Elm", "Fern"]);
    assert.equal(await bar(page).isVisible(), false);
    await page.locator(".toast").getByRole("button", { name: "Undo", exact: true }).click();
    await until("both plants to be listed", async () => (await names(page)).length === NAMES.length);
    assert.deepEqual(await names(page), NAMES);
  }
  assert.deepEqual(sent, []);

  // The first click with Shift selects one plant. What a filter hides is not deleted.
  await card(page, "Cedar", "Shift");
  await card(page, "Dill", "Control");
  assert.deepEqual(await selected(page), ["Cedar", "Dill"]);
  await page.getByRole("button", { name: "high 3" }).click();
  await page.getByText("1 selected", { exact: true }).waitFor();
  await bar(page).getByRole("button", { name: "Select all" }).click();
  await page.getByText("3 selected", { exact: true }).waitFor();
  await bar(page).getByRole("button", { name: "Delete" }).click();
  await dismiss(page, "3 plants deleted.");
  await until("the plants to be deleted", async () => !/Dill|Elm|Fern/.test(await stored()));
  assert.deepEqual(sent.sort(), ["/plants/4", "/plants/5", "/plants/6"]);
  assert.ok(/Aloe.*Basil.*Cedar/.test(await stored()));
  await page.getByRole("button", { name: "Select several" }).click();
  await page.getByText("Choose plants", { exact: true }).waitFor();
  await page.getByRole("button", { name: "End the selection" }).click();
  assert.equal(await bar(page).isVisible(), false);
  page.check();

  const reading = await signedIn(browser, { token: READS_ONLY });
  assert.equal(await reading.getByRole("button", { name: "Select several" }).isVisible(), false);
  await card(reading, "Aloe", "Control");
  assert.deepEqual(await selected(reading), []);
  reading.check();
}

async function keyboard(browser) {
  await planted();
  const page = await signedIn(browser);
  await page.getByRole("button", { name: "Table" }).click();
  await page.getByRole("button", { name: "Basil", exact: true }).focus();
  await page.keyboard.press("x");
  assert.deepEqual(await selected(page), ["Basil"]);
  await page.keyboard.press("Shift+ArrowDown");
  await page.keyboard.press("Shift+ArrowDown");
  assert.deepEqual(await selected(page), ["Basil", "Cedar", "Dill"]);
  await page.keyboard.press("Shift+ArrowUp");
  assert.deepEqual(await selected(page), ["Basil", "Cedar"]);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Space");
  assert.deepEqual(await selected(page), ["Basil", "Cedar", "Elm"]);
  await page.keyboard.press("Delete");
  await toast(page, "3 plants deleted.").waitFor();
  assert.deepEqual(await names(page), ["Aloe", "Dill", "Fern"]);
  await page.keyboard.press("Control+z");
  await until("all three to be listed", async () => (await names(page)).length === NAMES.length);
  assert.deepEqual(await names(page), NAMES);

  await page.keyboard.press("Control+a");
  await page.getByText("6 selected", { exact: true }).waitFor();
  await page.keyboard.press("Escape");
  assert.deepEqual(await selected(page), []);
  assert.equal(await bar(page).isVisible(), false);
  // Without a selection, the key deletes the plant that has the focus.
  await page.keyboard.press("Delete");
  await until("one plant less", async () => (await names(page)).length === NAMES.length - 1);
  await page.keyboard.press("Control+z");
  // Leaving the page sends the deletions of all selected plants.
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await toast(page, "6 plants deleted.").waitFor();
  await page.goto("about:blank");
  await until("all plants to be deleted", async () => (await stored()) === "[]");
  page.check();
}

async function phone(browser) {
  await planted();
  for (const width of [390, 320]) await onPhone(browser, width);
}

async function onPhone(browser, width) {
  const page = await signedIn(browser, { viewport: { width, height: 700 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true });
  for (const view of ["Cards", "Table"]) {
    await page.getByRole("button", { name: view }).tap();
    await page.getByRole("button", { name: "Select several" }).tap();
    for (const name of ["Basil", "Dill"]) await shown(page, name).tap();
    assert.deepEqual(await selected(page), ["Basil", "Dill"]);
    await checkAccessibility(page, `the selection in the ${view} on a phone`);
    await picture(page, `selection-${width}-${view.toLowerCase()}`);
    const boxes = await bar(page).locator("p, button").evaluateAll((parts) => parts.map((part) => part.getBoundingClientRect()));
    for (const { left, right, height } of boxes) assert.ok(left >= 0 && right <= width && height < 50, `the bar fits: ${left}, ${right}, ${height}`);
    await bar(page).getByRole("button", { name: "Delete" }).tap();
    await toast(page, "2 plants deleted.").getByRole("button", { name: "Undo" }).tap();
    await until("both plants to be listed", async () => (await names(page)).length === NAMES.length);
  }
  page.check();
}

main(() => withBrowser({ pointer, keyboard, phone }[PART]));
