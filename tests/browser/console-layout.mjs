// Narrow screens and long texts: ids stay readable, and buttons can be pressed.

import assert from "node:assert/strict";
import { ask, main, picture, withBrowser } from "./browser.mjs";
import { call, plant, shown, signedIn, stored, until } from "./garden.mjs";

const { BOB, PART } = process.env;
const SCREENS = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 }, narrow: { width: 320, height: 640 } };

/// Returns the ids that are truncated.
const truncatedIds = (page) => page.locator("[data-key] .id").evaluateAll((ids) => ids.filter((id) => id.scrollWidth > id.clientWidth).map((id) => id.textContent));

async function tags(browser) {
  await plant(1_234_567, "Ivy", "a tag as long as ".repeat(12).slice(0, 200));
  await plant(42, "Moss", "t".repeat(200));
  await plant(7, "Oak", "");
  for (const [name, viewport] of Object.entries(SCREENS)) {
    const page = await signedIn(browser, { viewport });
    for (const view of ["Cards", "Table"]) {
      await page.getByRole("button", { name: view }).click();
      await page.locator("[data-key]").nth(2).waitFor();
      assert.deepEqual(await truncatedIds(page), [], `${view} on the ${name}`);
      await picture(page, `tags-${name}-${view.toLowerCase()}`);
    }
    page.check();
  }
  // The same with the names of owners.
  await ask("share editor");
  await until("the grant to take effect", async () => (await stored(BOB)).includes("Moss"));
  await call("POST", "/plants", { token: BOB, body: '{"id":1234567,"name":"Fern","tag":"another tag that has many words"}' });
  for (const [name, viewport] of Object.entries(SCREENS)) {
    const page = await signedIn(browser, { viewport, token: BOB });
    for (const view of ["Cards", "Table"]) {
      await page.getByRole("button", { name: view }).click();
      await page.locator("[data-key]").nth(3).waitFor();
      assert.deepEqual(await truncatedIds(page), [], `${view} with owners on the ${name}`);
      await picture(page, `tags-owners-${name}-${view.toLowerCase()}`);
    }
    page.check();
  }
}

/// Scrolls through the page and returns the first position at which the add button covers a delete button, or null.
async function firstCoveredPosition() {
  // A step is no longer than the lowest button, so that no overlap is missed.
  const step = Math.min(...[...document.querySelectorAll("#add, [data-key] .delete")].map((button) => button.offsetHeight));
  for (let top = 0; top <= document.documentElement.scrollHeight - innerHeight; top += step) {
    scrollTo(0, top);
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    if (coversDelete()) return top;
  }
  return null;

  function coversDelete() {
    const add = document.getElementById("add").getBoundingClientRect();
    const controls = document.querySelector(".controls").getBoundingClientRect();
    return [...document.querySelectorAll("[data-key] .delete")].some((button) => {
      const { left, right, top, bottom } = button.getBoundingClientRect();
      // A button that has scrolled below the bar at the top is not visible.
      const isVisible = bottom > controls.bottom && top < innerHeight;
      return isVisible && left < add.right && right > add.left && top < add.bottom && bottom > add.top;
    });
  }
}

async function adding(browser) {
  for (let id = 1; id <= 40; id += 1) await plant(id, `Plant ${id}`, "garden");
  for (const name of ["phone", "narrow"]) {
    const page = await signedIn(browser, { viewport: SCREENS[name], isMobile: true, hasTouch: true });
    for (const view of ["Cards", "Table"]) {
      await page.getByRole("button", { name: view }).click();
      assert.equal(await page.evaluate(firstCoveredPosition), null, `${view} on the ${name}`);
      // The button is also visible at the end of the list.
      await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)");
      await shown(page, "Plant 40").waitFor();
      await picture(page, `end-${name}-${view.toLowerCase()}`);
      await page.getByRole("button", { name: "Delete Plant 40" }).click();
      await page.getByRole("button", { name: "Undo" }).click();
      await page.getByRole("button", { name: "Add a plant" }).click();
      await until("the form to open", () => page.getByRole("dialog", { name: "Add a plant" }).isVisible());
      await page.keyboard.press("Escape");
    }
    page.check();
  }
}

/// A species that the drawings do not know has leaves on a stem, and nothing that would be wrong: no flower and no spines.
async function drawings(browser) {
  const unknown = ["Tradescantia", "Bird of paradise", "Baobab", "Croton", "Hoya", "Begonia", "Bonsai", "Oak", "Plant 7", "日々草", "x"];
  for (const [index, name] of ["Swiss cheese plant", "Golden barrel cactus", "Dahlia", ...unknown].entries()) await plant(index, name, "");
  const page = await signedIn(browser);
  const parts = (name) => shown(page, name).locator("path").evaluateAll((paths) => paths.map((path) => path.getAttribute("class")).join(" "));
  for (const name of ["Swiss cheese plant", ...unknown]) assert.equal(await parts(name), "stem shade leaf vein pot", name);
  assert.equal(await parts("Golden barrel cactus"), "shade leaf vein bloom pot");
  assert.equal(await parts("Dahlia"), "stem shade leaf vein bloom heart pot");
  await picture(page, "drawings");
  page.check();
}

main(() => withBrowser({ tags, adding, drawings }[PART]));
