// The interactive page: a reader authorizes, tries all three operations, and sees the responses.

import assert from "node:assert/strict";
import { TOKEN, main, openPage, picture, withBrowser } from "./browser.mjs";
import { signedIn } from "./garden.mjs";

/// Opens an operation, fills in its parameters, executes it and returns the response that the page shows.
async function tryOut(page, operation, fill) {
  const block = page.locator(`#operations-plants-${operation}`);
  await block.locator(".opblock-summary-control").click();
  await block.getByRole("button", { name: "Try it out" }).click();
  await fill(block);
  await block.getByRole("button", { name: "Execute" }).click();
  const live = block.locator(".live-responses-table .response");
  await live.waitFor();
  const status = (await live.locator(".response-col_status").innerText()).trim();
  const response = await live.locator(".response-col_description").innerText();
  await live.scrollIntoViewIfNeeded();
  await picture(page, operation);
  await block.locator(".opblock-summary-control").click();
  return { status: Number.parseInt(status, 10), response };
}

/// The page has the theme and the token of the console, and leads back to it.
async function followsTheConsole(browser) {
  const page = await signedIn(browser, { colorScheme: "dark" });
  const background = () => page.evaluate("getComputedStyle(document.body).backgroundColor");
  await page.getByRole("link", { name: "API docs" }).click();
  await page.locator("button.authorize.locked").waitFor();
  await page.getByText("Requests use the token that you are signed in with.").waitFor();
  const dark = await background();
  await picture(page, "dark");
  const listed = await tryOut(page, "listPlants", async () => {});
  assert.equal(listed.status, 200);
  await picture(page, "dark-response");
  await page.getByRole("button", { name: "Dark theme" }).click();
  assert.notEqual(await background(), dark);
  await page.getByRole("link", { name: "Back to the plants" }).click();
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  assert.equal(await page.evaluate("document.documentElement.dataset.theme"), "light");
  await page.goto("/docs");
  await page.locator("button.authorize.locked").waitFor();
  assert.notEqual(await background(), dark);
  page.check();
}

main(() =>
  withBrowser(async (browser) => {
    const page = await openPage(browser);
    await page.goto("/docs");
    await page.locator("#operations-plants-createPlant").waitFor();
    await picture(page, "page", { fullPage: true });

    await page.getByRole("button", { name: "Authorize" }).first().click();
    const dialog = page.locator(".auth-container");
    await dialog.locator("input").fill(TOKEN);
    await dialog.getByRole("button", { name: "Apply credentials" }).click();
    await picture(page, "authorized");
    await dialog.getByRole("button", { name: "Close" }).click();

    const created = await tryOut(page, "createPlant", async (block) => {
      await block.locator("textarea.body-param__text").fill('{"id": 7, "name": "Monstera", "tag": "indoor"}');
    });
    assert.equal(created.status, 200);
    assert.match(created.response, /"name": "Monstera"/);
    assert.match(created.response, /location: \/plants\/7/);

    const listed = await tryOut(page, "listPlants", async (block) => {
      await block.locator('[data-param-name="include"] select').selectOption("id");
    });
    assert.equal(listed.status, 200);
    assert.match(listed.response, /"id": 7/);

    const deleted = await tryOut(page, "deletePlant", async (block) => {
      await block.locator('[data-param-name="id"] input').fill("7");
    });
    assert.equal(deleted.status, 204);

    // A token is not stored: after a reload it is needed again.
    await page.reload();
    await page.locator("#operations-plants-createPlant").waitFor();
    assert.equal(await page.locator("button.authorize.locked").count(), 0);
    assert.equal(await page.locator("button.authorize.unlocked").count(), 1);
    page.check();

    await followsTheConsole(browser);
  }),
);
