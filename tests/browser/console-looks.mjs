// Every state of the console, in light and in dark, on a desktop and on a phone: accessible, without overflow.

import assert from "node:assert/strict";
import { TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { add, reload, shown, signIn, signedIn, stored, toast } from "./garden.mjs";

const { BOB, READS_ONLY, REVOKED } = process.env;
const DESK = { viewport: { width: 1280, height: 800 }, reducedMotion: "no-preference" };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };
/// The narrowest supported screen: 1280 pixels at 400 %.
const NARROW = { viewport: { width: 320, height: 640 } };
/// 1280 by 800 pixels at 200 %.
const ZOOMED = { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 };

/// Checks the width and the accessibility of the page and takes a screenshot.
async function inspect(page, state) {
  const [inside, width] = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]");
  assert.ok(inside <= width, `${state} is ${inside} pixels wide on a screen of ${width}`);
  await checkAccessibility(page, state);
  await picture(page, state);
  console.log(state);
}

async function states(browser, name, options) {
  const page = await openPage(browser, options);
  page.tolerate(/status of 4\d\d/, /ERR_/);
  await page.goto("/");
  await page.getByLabel("Access token").waitFor();
  await inspect(page, `${name}-1-sign-in`);
  await signIn(page, REVOKED);
  await page.getByText("The server rejected this token").waitFor();
  await inspect(page, `${name}-2-rejected`);
  await signIn(page, TOKEN);
  await shown(page, "Monstera deliciosa").waitFor();
  await inspect(page, `${name}-3-cards`);
  await page.getByRole("button", { name: "Table" }).click();
  await inspect(page, `${name}-4-table`);
  await page.getByRole("button", { name: "Cards" }).click();
  const form = await add(page, { name: "", id: "x" });
  await form.getByText("Give it a name.").waitFor();
  await inspect(page, `${name}-5-add`);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Monstera deliciosa", exact: true }).click();
  await inspect(page, `${name}-6-plant`);
  await page.getByRole("dialog").getByRole("button", { name: "Edit" }).click();
  await page.getByRole("dialog", { name: "Edit the plant" }).waitFor();
  await inspect(page, `${name}-6-edit`);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Select several" }).click();
  await shown(page, "Snake plant").click();
  await inspect(page, `${name}-6-selection`);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Delete Snake plant" }).click();
  await toast(page, "“Snake plant” deleted.").waitFor();
  await inspect(page, `${name}-7-deleted`);
  await page.keyboard.press("Control+z");
  await page.getByRole("searchbox").fill("no such plant");
  await page.getByRole("heading", { name: "No plant matches" }).waitFor();
  await inspect(page, `${name}-8-no-match`);
  await page.getByRole("button", { name: "Show all plants" }).click();
  await page.context().setOffline(true);
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("You are offline.").waitFor();
  await inspect(page, `${name}-9-offline`);
  await page.context().close();
}

async function others(browser) {
  const empty = await signedIn(browser, { token: BOB, colorScheme: "light" });
  await empty.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  await inspect(empty, "empty-light");
  await empty.getByRole("button", { name: "Dark theme" }).click();
  assert.equal(await empty.evaluate("document.documentElement.dataset.theme"), "dark");
  await inspect(empty, "empty-dark");
  await empty.reload();
  assert.equal(await empty.evaluate("getComputedStyle(document.documentElement).colorScheme"), "dark");
  await ask("share");
  await empty.reload();
  await shown(empty, "Monstera deliciosa").waitFor();
  await add(empty, { name: "Sword fern", tag: "balcony" });
  await reload(empty);
  await empty.getByText("Owners: ada and bob").waitFor();
  await inspect(empty, "shared-dark");
  await empty.getByRole("button", { name: "Add a plant" }).click();
  await empty.getByLabel("Whose plant").selectOption("ada");
  await inspect(empty, "shared-add-dark");
  await empty.keyboard.press("Escape");
  await empty.getByRole("button", { name: "Table" }).click();
  await inspect(empty, "shared-table-dark");
  empty.check();

  const narrow = await signedIn(browser, { ...NARROW, token: BOB });
  await narrow.getByLabel("Owner").waitFor();
  await inspect(narrow, "narrow-shared-cards");
  await narrow.getByRole("button", { name: "Table" }).click();
  await inspect(narrow, "narrow-shared-table");
  await narrow.getByRole("button", { name: "Delete Monstera deliciosa" }).click();
  await narrow.getByRole("button", { name: "Delete Fiddle-leaf fig" }).click();
  await toast(narrow, "2 plants deleted.").waitFor();
  await inspect(narrow, "narrow-shared-deleted");
  await narrow.keyboard.press("Control+z");
  await narrow.keyboard.press("Control+z");
  await shown(narrow, "Monstera deliciosa").waitFor();
  narrow.check();

  const rejected = await signedIn(browser, { token: READS_ONLY });
  await rejected.getByText("This token cannot add, edit or delete plants.").waitFor();
  await inspect(rejected, "read-only");
  await rejected.keyboard.press("?");
  await rejected.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await inspect(rejected, "keys");

  for (const [name, options] of Object.entries({ narrow: NARROW, zoomed: ZOOMED })) {
    const page = await signedIn(browser, { ...options, reducedMotion: "reduce" });
    await inspect(page, `${name}-cards`);
    await page.getByRole("button", { name: "Table" }).click();
    await inspect(page, `${name}-table`);
    await page.getByRole("button", { name: "Add a plant" }).click();
    await inspect(page, `${name}-add`);
    page.check();
  }
}

main(() =>
  withBrowser(async (browser) => {
    const before = await stored();
    for (const colorScheme of ["light", "dark"]) {
      await states(browser, `desk-${colorScheme}`, { ...DESK, colorScheme });
      await states(browser, `phone-${colorScheme}`, { ...PHONE, colorScheme });
    }
    await others(browser);
    assert.equal(await stored(), before, "the plants are unchanged");
  }),
);
