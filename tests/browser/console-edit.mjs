// Editing a plant: in the same form as adding, with the same safety.

import assert from "node:assert/strict";
import { ask, checkAccessibility, main, picture, withBrowser } from "./browser.mjs";
import { call, dismiss, plant, shown, signedIn, stored, toast, until } from "./garden.mjs";

const { BOB_FULL, PART, READS_ONLY } = process.env;

const form = (page) => page.getByRole("dialog", { name: "Edit the plant" });
const save = (page) => form(page).getByRole("button", { name: "Save", exact: true }).click();
const focused = (page) => page.evaluate("document.activeElement.textContent");
const writes = (page) => {
  const sent = [];
  page.on("request", (request) => request.method() === "PUT" && sent.push(request));
  return sent;
};

/// Opens the details of a plant and the form from there.
async function edit(page, name) {
  await page.getByRole("button", { name, exact: true }).click();
  await page.getByRole("dialog", { name }).getByRole("button", { name: "Edit" }).click();
  await form(page).waitFor();
}

async function editing(browser) {
  await plant(1, "Mosntera", "indoor");
  await plant(2, "Oak", "garden");
  const page = await signedIn(browser);
  const sent = writes(page);
  await edit(page, "Mosntera");
  assert.equal(await form(page).getByLabel("Name").inputValue(), "Mosntera");
  assert.equal(await form(page).getByLabel("Tag").inputValue(), "indoor");
  assert.equal(await form(page).getByLabel("Id").inputValue(), "1");
  assert.equal(await form(page).getByLabel("Id").evaluate((field) => field.readOnly), true);
  await checkAccessibility(page, "the form for editing");
  await picture(page, "edit");

  // Errors are shown at their fields, and without a change nothing is sent.
  await form(page).getByLabel("Name").fill(" ");
  await save(page);
  await form(page).getByText("Give it a name.").waitFor();
  await form(page).getByLabel("Name").fill("Mosntera");
  await save(page);
  await form(page).waitFor({ state: "hidden" });
  assert.equal(sent.length, 0);

  await edit(page, "Mosntera");
  await form(page).getByLabel("Name").fill("Monstera");
  await form(page).getByLabel("Tag").fill("");
  await page.keyboard.press("Enter");
  await toast(page, "“Monstera” saved.").waitFor();
  assert.equal(await focused(page), "Monstera");
  assert.deepEqual(await page.locator("[data-key] .name").allTextContents(), ["Monstera", "Oak"]);
  assert.equal(await stored(), '[{"id":1,"name":"Monstera"},{"id":2,"name":"Oak","tag":"garden"}]');
  assert.equal(sent.length, 1);
  assert.match(sent[0].headers()["idempotency-key"], /^[0-9a-f]{32}$/);

  // The key `e` edits the plant that has the focus, or whose details are open. An edit can be undone.
  await page.keyboard.press("e");
  await form(page).getByLabel("Tag").fill("kitchen");
  await save(page);
  await toast(page, "2 plants saved.").waitFor();
  await page.keyboard.press("Control+z");
  await until("the last edit to be undone", async () => (await stored()).startsWith('[{"id":1,"name":"Monstera"},'));
  await page.locator(".toast").getByRole("button", { name: "Undo" }).click();
  await until("the first edit to be undone", async () => (await stored()).startsWith('[{"id":1,"name":"Mosntera","tag":"indoor"},'));
  await shown(page, "Mosntera").waitFor();
  await page.getByRole("button", { name: "Oak", exact: true }).click();
  await page.keyboard.press("e");
  await form(page).waitFor();
  assert.equal(await form(page).getByLabel("Name").inputValue(), "Oak", "the key is not typed into the form");
  await page.keyboard.press("Escape");

  // The form for a new plant is as before.
  await page.getByRole("button", { name: "Add a plant" }).click();
  const adding = page.getByRole("dialog", { name: "Add a plant" });
  assert.equal(await adding.getByLabel("Id").inputValue(), "3");
  assert.equal(await adding.getByLabel("Name").inputValue(), "");
  await page.keyboard.press("Escape");

  // A plant that is sorted or filtered elsewhere after the edit.
  await page.getByRole("button", { name: "garden" }).click();
  await edit(page, "Oak");
  await form(page).getByLabel("Tag").fill("forest");
  await save(page);
  await toast(page, "“Oak” saved. The filter hides it.").waitFor();
  page.check();
}

/// A lost response, a server that is away, and a plant that is gone.
async function safety(browser) {
  await plant(1, "Ivy", "wall");
  const page = await signedIn(browser);
  page.tolerate(/ERR_FAILED/, /status of 404/);
  const sent = writes(page);
  let isLost = true;
  await page.route("**/plants/1*", async (route) => {
    if (route.request().method() !== "PUT") return route.continue();
    // The server has executed the request.
    await route.fetch();
    return isLost ? route.abort() : route.continue();
  });
  await edit(page, "Ivy");
  await form(page).getByLabel("Name").fill("English ivy");
  await save(page);
  await form(page).getByRole("button", { name: "Saving…" }).waitFor();
  await form(page).getByText("The server cannot be reached. Trying again in").waitFor();
  await until("a retry", () => sent.length > 1);
  isLost = false;
  await until("the plant to be saved", async () => {
    const waits = await page.getByText("Press Save again to go on: it is saved once").isVisible();
    if (waits) await save(page);
    return form(page).isHidden();
  });
  await shown(page, "English ivy").waitFor();
  assert.equal(new Set(sent.map((request) => request.headers()["idempotency-key"])).size, 1, "one key for all attempts");
  assert.equal(await stored(), '[{"id":1,"name":"English ivy","tag":"wall"}]');
  await page.unroute("**/plants/1*");

  await dismiss(page, "“English ivy” saved.");
  await page.route("**/events", (route) => route.abort());
  await page.reload();
  await edit(page, "English ivy");
  await call("DELETE", "/plants/1");
  await form(page).getByLabel("Name").fill("Common ivy");
  await save(page);
  await form(page).getByText("It was deleted meanwhile, so it cannot be saved.").waitFor();
  assert.equal(await form(page).getByLabel("Name").inputValue(), "Common ivy");
  assert.equal(await stored(), "[]");
  page.check();
}

/// Editing is offered only if the token and the role allow it.
async function allowed(browser) {
  await plant(1, "Ivy", "wall");
  const cannotEdit = async (page, name) => {
    await page.getByRole("button", { name, exact: true }).focus();
    await page.keyboard.press("e");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog", { name }).waitFor();
    assert.equal(await page.locator("#plant-edit").isVisible(), false);
    await page.keyboard.press("e");
    assert.equal(await form(page).isVisible(), false);
    await page.keyboard.press("Escape");
  };
  const reading = await signedIn(browser, { token: READS_ONLY });
  await reading.getByText("This token cannot add, edit or delete plants.", { exact: true }).waitFor();
  await cannotEdit(reading, "Ivy");
  reading.check();

  await ask("share reader");
  await until("the grant to take effect", async () => (await stored(BOB_FULL)).includes("Ivy"));
  await call("POST", "/plants", { token: BOB_FULL, body: '{"id":2,"name":"Moss"}' });
  const page = await signedIn(browser, { token: BOB_FULL });
  await page.getByText("You can read the plants of ada, not change them.", { exact: true }).waitFor();
  await cannotEdit(page, "Ivy");
  await edit(page, "Moss");
  await page.keyboard.press("Escape");
  await ask("share editor");
  await until("the role editor to take effect", async () => {
    await page.getByRole("button", { name: "Refresh" }).click();
    return page.getByText("You can read the plants of ada").isHidden();
  });
  await edit(page, "Ivy");
  await form(page).getByLabel("Name").fill("English ivy");
  // The server learns of the role within 5 s.
  page.tolerate(/status of 403/);
  await until("ada's plant to be edited", async () => {
    if (await form(page).getByRole("button", { name: "Save", exact: true }).isVisible()) await save(page).catch(() => {});
    return (await stored()).includes("English ivy");
  });
  page.check();
}

main(() => withBrowser({ editing, safety, allowed }[PART]));
