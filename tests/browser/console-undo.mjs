// Every deletion can be undone for 10 seconds.

import assert from "node:assert/strict";
import { TOKEN, main, openPage, picture, withBrowser } from "./browser.mjs";
import { plant, shown, signIn, stored, toast, until } from "./garden.mjs";

const NAMES = ["Aloe", "Basil", "Cedar", "Dill", "Elm", "Fern"];

async function planted(browser) {
  for (const [index, name] of NAMES.entries()) await plant(index + 1, name, "garden");
  const page = await openPage(browser);
  await page.clock.install();
  await page.goto("/");
  await signIn(page, TOKEN);
  await shown(page, "Fern").waitFor();
  // From here on the test controls the clock.
  await page.clock.pauseAt(Date.now() + 60_000);
  return page;
}

const remove = (page, name) => page.getByRole("button", { name: `Delete ${name}`, exact: true }).click();
const undo = (page, label) => page.locator(".toast").getByRole("button", { name: label, exact: true });
const names = (page) => page.locator("[data-key] .name").allTextContents();

/// Moves the pointer and the focus away from the messages, because they pause the timeout.
async function leaveMessages(page) {
  await page.mouse.move(5, 5);
  await page.evaluate("document.activeElement.blur()");
}

async function undoingAll(page, all) {
  let requests = 0;
  page.on("request", (request) => (requests += request.method() === "DELETE" ? 1 : 0));
  for (const name of NAMES) await remove(page, name);
  await toast(page, "6 plants deleted.").waitFor();
  assert.equal(await page.locator(".toast").count(), 1, "all deletions share one message");
  await picture(page, "several-deleted");
  await leaveMessages(page);
  await page.clock.runFor(9_000);
  // A refresh does not send pending deletions.
  await page.getByRole("button", { name: "Refresh" }).click();
  await toast(page, "No plant has changed.").waitFor();
  assert.equal(requests, 0);
  await undo(page, "Undo all").click();
  await until("all plants to be listed", async () => (await names(page)).length === NAMES.length);
  assert.deepEqual(await names(page), NAMES);
  await page.clock.runFor(30_000);
  assert.equal(await stored(), all);
  assert.equal(requests, 0, "no deletion was sent");
}

/// Each deletion has its own timeout. The newest is undone first.
async function separateTimeouts(page) {
  await remove(page, "Aloe");
  await leaveMessages(page);
  await page.clock.runFor(6_000);
  await remove(page, "Basil");
  await remove(page, "Cedar");
  await undo(page, "Undo all").waitFor();
  await leaveMessages(page);
  await page.clock.runFor(3_500);
  assert.ok((await stored()).includes("Aloe"), "the deletion is not sent before its timeout");
  await page.clock.runFor(1_000);
  await until("Aloe to be deleted", async () => !(await stored()).includes("Aloe"));
  await toast(page, "3 plants deleted.").waitFor();
  await undo(page, "Undo the last 2").waitFor();
  await page.keyboard.press("Control+z");
  await shown(page, "Cedar").waitFor();
  await toast(page, "2 plants deleted.").waitFor();
  await undo(page, "Undo the last one").click();
  await shown(page, "Basil").waitFor();
  assert.equal(await page.locator(".toast", { hasText: "deleted" }).count(), 0);
  assert.deepEqual(await names(page), NAMES.slice(1));
}

/// A pointer over the message pauses all timeouts.
async function pausing(page) {
  for (const name of ["Basil", "Cedar"]) await remove(page, name);
  await toast(page, "2 plants deleted.").hover();
  await page.evaluate("document.activeElement.blur()");
  await page.clock.runFor(60_000);
  await undo(page, "Undo all").waitFor();
  assert.ok((await stored()).includes("Basil"));
  await leaveMessages(page);
  await page.clock.runFor(9_000);
  assert.ok((await stored()).includes("Basil"));
  await page.clock.runFor(2_000);
  await until("Basil and Cedar to be deleted", async () => !/Basil|Cedar/.test(await stored()));
}

main(() =>
  withBrowser(async (browser) => {
    const page = await planted(browser);
    const all = await stored();
    await undoingAll(page, all);
    await separateTimeouts(page);
    await pausing(page);

    // Other messages do not replace the undo button. A key that is held down deletes one plant.
    await remove(page, "Dill");
    await page.locator("[data-key] .name").first().focus();
    for (const type of ["keydown", "keydown", "keydown"]) {
      await page.evaluate((name) => document.activeElement.dispatchEvent(new KeyboardEvent(name, { key: "Delete", repeat: true, bubbles: true })), type);
    }
    for (let time = 0; time < 5; time += 1) await page.getByRole("button", { name: "Refresh" }).click();
    await until("several messages", async () => (await page.locator(".toast").count()) > 1);
    assert.deepEqual(await names(page), ["Elm", "Fern"]);
    await undo(page, "Undo").click();
    await shown(page, "Dill").waitFor();

    // Leaving the page sends all pending deletions.
    for (const name of ["Dill", "Elm", "Fern"]) await remove(page, name);
    await toast(page, "3 plants deleted.").waitFor();
    assert.ok((await stored()).includes("Fern"));
    await page.goto("about:blank");
    await until("all plants to be deleted", async () => (await stored()) === "[]");
    page.check();
  }),
);
