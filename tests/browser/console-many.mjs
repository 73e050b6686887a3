// Thousands of plants: all can be searched, counted and reached, and the page has elements only for the visible ones.

import assert from "node:assert/strict";
import { TOKEN, ask, main, openPage, picture, withBrowser } from "./browser.mjs";
import { call, dismiss, signIn, toast, until } from "./garden.mjs";

const MANY = 5_000;
/// Returns true if plants fill the visible part of the list.
function isFull() {
  const list = document.querySelector(".canvas").getBoundingClientRect();
  // The gap between two cards does not count.
  const gap = 1.5 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const boxes = [...document.querySelectorAll("[data-key]")].map((item) => item.getBoundingClientRect());
  let reached = Math.max(0, list.top);
  for (const { top, bottom } of boxes.sort((one, other) => one.top - other.top)) {
    if (top <= reached + gap) reached = Math.max(reached, bottom);
  }
  return reached >= Math.min(innerHeight, list.bottom) - gap;
}

/// Returns true if the focused element is visible and not covered.
function isFocusVisible() {
  const { left, top, width, height } = document.activeElement.getBoundingClientRect();
  return document.activeElement.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}

/// With more elements, the page would have elements for invisible plants.
const MOST_ELEMENTS = 2_500;

main(() =>
  withBrowser(async (browser) => {
    const page = await openPage(browser);
    await page.goto("/");
    await signIn(page, TOKEN);
    await page.getByText("5,000 plants", { exact: true }).waitFor();
    const bounded = async (when) => {
      const elements = await page.evaluate("document.getElementsByTagName('*').length");
      assert.ok(elements < MOST_ELEMENTS, `${elements} elements ${when}`);
    };
    await bounded("at first");

    // Every hundredth plant has the tag `hundredth`, every other tenth plant the tag `tenth`.
    const chip = (name) => page.getByRole("button", { name });
    await chip("ordinary 4,500").waitFor();
    await chip("tenth 450").click();
    await page.getByText("450 of 5,000 plants", { exact: true }).waitFor();
    await chip("tenth 450").click();
    await chip("hundredth 50").click();
    await page.getByText("50 of 5,000 plants", { exact: true }).waitFor();
    await chip("hundredth 50").click();

    // The search finds plants at any position of the list.
    const search = page.getByRole("searchbox");
    for (const number of [1, 2, 999, 1_000, 1_001, 2_500, 4_001, MANY]) {
      await search.fill(`number-${String(number).padStart(4, "0")}`);
      await page.getByText("1 of 5,000 plants", { exact: true }).waitFor();
      assert.deepEqual(await page.locator("[data-key] .id").allTextContents(), [String(number)]);
    }
    await search.fill("number-49 TENTH");
    await page.getByText("9 of 5,000 plants", { exact: true }).waitFor();
    await search.fill("");
    await page.getByText("5,000 plants", { exact: true }).waitFor();

    for (const view of ["Cards", "Table"]) {
      await page.getByRole("button", { name: view }).click();
      // Scrolling: at each position plants fill the page, and the focus does not move.
      const height = await page.evaluate("document.documentElement.scrollHeight");
      const focused = () => page.evaluate("document.activeElement.textContent");
      await page.getByRole("button", { name: "Plant number-0001", exact: true }).focus();
      for (let step = 0; step <= 20; step += 1) {
        await page.evaluate(`scrollTo(0, ${(height * step) / 20})`);
        await until(`visible plants (${view}, step ${step})`, () => page.evaluate(isFull));
        assert.equal(await focused(), "Plant number-0001", `${view}, step ${step}`);
        await bounded(`in the ${view} at step ${step}`);
      }
      await page.locator("[data-key]", { hasText: "number-5000" }).waitFor();
      // The arrow keys continue from the focused plant, and the new focus is visible.
      await page.keyboard.press("ArrowDown");
      assert.notEqual(await focused(), "Plant number-0001");
      assert.ok(await page.evaluate(isFocusVisible));
      await page.keyboard.press("ArrowUp");
      assert.equal(await focused(), "Plant number-0001");
      // Home and End reach both ends of the list.
      await page.keyboard.press("End");
      assert.equal(await page.evaluate("document.activeElement.textContent"), "Plant number-5000");
      await page.keyboard.press("ArrowUp");
      assert.notEqual(await page.evaluate("document.activeElement.textContent"), "Plant number-5000");
      await bounded(`at the end of the ${view}`);
      await page.keyboard.press("Home");
      assert.equal(await page.evaluate("document.activeElement.textContent"), "Plant number-0001");
    }
    // The focus is also visible on a phone, where the sticky bar is higher.
    const desk = page.viewportSize();
    await page.setViewportSize({ width: 390, height: 700 });
    await page.keyboard.press("End");
    for (let step = 0; step < 20; step += 1) {
      await page.keyboard.press("ArrowUp");
      assert.ok(await page.evaluate(isFocusVisible), `${step} steps up`);
    }
    await page.setViewportSize(desk);
    await page.keyboard.press("Home");
    await page.getByLabel("Sort").selectOption("-name");
    await page.locator("[data-key]", { hasText: "number-5000" }).waitFor();
    await picture(page, "many-table");

    // A plant that is deleted during a refresh does not reappear with the refreshed list. The event about plant 4999 may start
    // one, too, which waits as well.
    let release;
    const held = new Promise((resolve) => (release = resolve));
    await page.route("**/plants?*after=*", async (route) => {
      await held;
      await route.continue();
    });
    await call("DELETE", "/plants/4999");
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.getByRole("button", { name: "Delete Plant number-5000" }).click();
    await page.getByText("4,999 plants", { exact: true }).waitFor();
    release();
    await page.getByText("4,998 plants", { exact: true }).waitFor();
    await dismiss(page, "“Plant number-5000” deleted.");
    await until("the plant to be deleted", async () => !(await call("GET", "/plants")).includes("number-5000"));
    await page.locator("#progress").waitFor({ state: "hidden" });
    await page.getByText("4,998 plants", { exact: true }).waitFor();

    // The page reports that it has not loaded all plants.
    await ask("grow");
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.getByText("50,000 plants. 1 more is not shown and not searched.", { exact: true }).waitFor();
    await search.fill("one too many");
    await page.getByText("0 of 50,000 plants. 1 more is not searched.", { exact: true }).waitFor();
    await page.locator("#nothing").getByText("1 more is not searched.").waitFor();
    // A number is searched for on the server, too.
    page.tolerate(/status of 404/);
    const answer = page.waitForResponse("**/plants/50004?*");
    await search.fill("50004");
    await answer;
    await page.locator("#nothing").getByText("1 more is not searched.").waitFor();
    await search.fill("50003");
    await page.getByText("1 of 50,001 plants", { exact: true }).waitFor();
    assert.deepEqual(await page.locator("[data-key] .name").allTextContents(), ["One too many"]);
    await page.reload();
    await page.getByText("1 of 50,001 plants", { exact: true }).waitFor();
    // So is a tag. A filter that the server has searched leaves nothing unsearched, also after a reload.
    await search.fill("");
    await until("the address without the search", () => new URL(page.url()).hash === "");
    await page.reload();
    await page.getByText("50,000 plants. 1 more is not shown and not searched.", { exact: true }).waitFor();
    await chip("hundredth 49").click();
    await page.getByText("49 of 50,001 plants", { exact: true }).waitFor();
    await chip("hundredth 49").click();
    await search.fill("rare");
    await chip("All plants with the tag “rare”").click();
    await page.getByText("1 of 50,001 plants", { exact: true }).waitFor();
    assert.deepEqual(await page.locator("[data-key] .name").allTextContents(), ["One too many"]);
    await until("the address with the tag", () => new URL(page.url()).hash === "#tag=rare");
    await page.reload();
    await page.getByText("1 of 50,001 plants", { exact: true }).waitFor();
    await chip("rare 1").click();
    await page.getByText("50,001 plants", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Refresh" }).click();
    await toast(page, "No plant has changed.").waitFor();
    await page.getByText("50,001 plants", { exact: true }).waitFor();
    await until("the address without the search", () => new URL(page.url()).hash === "");
    await page.reload();
    await page.getByText("50,000 plants. 1 more is not shown and not searched.", { exact: true }).waitFor();
    await search.fill("number-4998");
    await page.getByText("1 of 50,000 plants. 1 more is not searched.", { exact: true }).waitFor();
    await search.fill("");
    await bounded("of 50,000");
    page.check();
  }),
);
