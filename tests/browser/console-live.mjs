// Live updates: the changes of other clients appear by themselves, and what the user reads or types stays where it is.

import assert from "node:assert/strict";
import { TOKEN, main, openPage, withBrowser } from "./browser.mjs";
import { add, call, dismiss, plant, shown, signIn, signedIn, stored, toast, until } from "./garden.mjs";

const { PART } = process.env;

const replace = (id, name, tag) => call("PUT", `/plants/${id}`, { body: JSON.stringify({ name, tag }) });
const names = (page) => page.locator("[data-key] .name").allTextContents();
const shows = (page, expected) => until(expected.join(", "), async () => JSON.stringify(await names(page)) === JSON.stringify(expected));
const focused = (page) => page.evaluate("document.activeElement.textContent");
const topOf = (page, name) => shown(page, name).evaluate((item) => Math.round(item.getBoundingClientRect().top));

/// Another tab and other programs add, edit and delete plants.
async function appearing(browser) {
  await plant(2, "Oak", "garden");
  await plant(4, "Elm", "garden");
  const page = await signedIn(browser);
  const other = await page.context().newPage();
  await other.goto("/");
  await signIn(other, TOKEN);
  await add(other, { id: "3", name: "Fern" });
  await shows(page, ["Oak", "Fern", "Elm"]);
  await shown(page, "Elm").getByRole("button", { name: "Elm", exact: true }).focus();
  await replace(2, "English oak", "park");
  await shows(page, ["English oak", "Fern", "Elm"]);
  await page.getByRole("button", { name: "park 1" }).waitFor();
  await call("DELETE", "/plants/3");
  await shows(page, ["English oak", "Elm"]);
  assert.equal(await focused(page), "Elm", "the focus stays with its plant");
  await call("DELETE", "/plants/4");
  await shows(page, ["English oak"]);
  assert.equal(await focused(page), "English oak", "the plant that had the focus is gone");
  assert.equal(await page.locator(".toast").count(), 0, "nothing is announced");

  // An empty list, and back.
  await call("DELETE", "/plants/2");
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  await plant(9, "Ash", "");
  await shown(page, "Ash").waitFor();
  page.check();
}

/// A list that is read, a selection and typed text are not moved or replaced.
async function undisturbed(browser) {
  for (let id = 100; id < 200; id += 1) await plant(id, `Plant ${id}`, "garden");
  const page = await signedIn(browser);
  for (const view of ["Table", "Cards"]) {
    await page.getByRole("button", { name: view }).click();
    await page.evaluate("document.activeElement.blur(), scrollTo(0, document.documentElement.scrollHeight / 2)");
    await until("the middle of the list", async () => (await names(page)).includes("Plant 150"));
    const before = await topOf(page, "Plant 150");
    // As many as a row holds at most, so that every card keeps its column only if the rows move.
    const columns = Number(await page.evaluate("document.getElementById('plants').style.getPropertyValue('--columns')"));
    for (let id = 1; id <= columns; id += 1) await plant(id, `New ${id}`, `tag ${id}`);
    await page.getByText(`${100 + columns} plants`, { exact: true }).waitFor();
    assert.equal(await topOf(page, "Plant 150"), before, `${view}: plants above`);
    for (let id = 1; id <= columns; id += 1) await call("DELETE", `/plants/${id}`);
    await page.getByText("100 plants", { exact: true }).waitFor();
    assert.equal(await topOf(page, "Plant 150"), before, `${view}: fewer plants above`);
  }
  await page.evaluate("scrollTo(0, 0)");

  // A search that is being typed, with the position of the cursor.
  const search = page.getByRole("searchbox");
  await search.fill("Plant 19");
  await search.press("ArrowLeft");
  await plant(1_190, "Plant 190 b", "");
  await page.getByText("12 of 101 plants", { exact: true }).waitFor();
  await search.press("1");
  assert.equal(await search.inputValue(), "Plant 119");
  await search.fill("");

  // The selected plants stay selected, without those that are gone.
  for (const name of ["Plant 100", "Plant 101", "Plant 102"]) await shown(page, name).click({ modifiers: ["Control"] });
  await call("DELETE", "/plants/101");
  await page.getByText("2 selected", { exact: true }).waitFor();
  await page.keyboard.press("Escape");

  // A form that is being filled in.
  await page.getByRole("button", { name: "Add a plant" }).click();
  const adding = page.getByRole("dialog", { name: "Add a plant" });
  await adding.getByLabel("Name").fill("Yew");
  await call("DELETE", "/plants/102");
  await page.getByText("99 plants", { exact: true }).waitFor();
  assert.equal(await focused(page), "");
  assert.equal(await adding.getByLabel("Name").inputValue(), "Yew");
  await page.keyboard.press("Escape");

  // Details show the plant as it is, and a form keeps what was typed and says what has changed.
  await page.getByRole("button", { name: "Plant 103", exact: true }).click();
  await replace(103, "Linden", "street");
  const details = page.getByRole("dialog", { name: "Linden" });
  await details.getByText("street").waitFor();
  await details.getByRole("button", { name: "Edit" }).click();
  const editing = page.getByRole("dialog", { name: "Edit the plant" });
  await editing.getByLabel("Name").fill("Small-leaved linden");
  await replace(103, "Lime", "street");
  await editing.getByText("It was changed meanwhile: it is now “Lime”, with the tag “street”. Save replaces that.").waitFor();
  assert.equal(await editing.getByLabel("Name").inputValue(), "Small-leaved linden");
  await editing.getByRole("button", { name: "Save", exact: true }).click();
  await toast(page, "“Small-leaved linden” saved.").waitFor();
  // Undoing restores what was replaced, unless another client has changed it again.
  await page.keyboard.press("Control+z");
  await until("the edit to be undone", async () => (await stored()).includes('"Lime"'));
  await page.getByRole("button", { name: "Lime", exact: true }).click();
  await call("DELETE", "/plants/103");
  await page.getByText("This plant was deleted meanwhile.").waitFor();
  for (const id of ["plant-edit", "plant-delete"]) assert.equal(await page.locator(`#${id}`).isVisible(), false);
  page.check();
}

/// Undoing restores a plant as it is now.
async function undoing(browser) {
  for (const [id, name] of [[1, "Oak"], [2, "Elm"], [3, "Ash"]]) await plant(id, name, "garden");
  const page = await signedIn(browser);
  const undo = () => page.locator(".toast").getByRole("button", { name: "Undo", exact: true }).click();
  await page.getByRole("button", { name: "Delete Elm" }).click();
  await toast(page, "“Elm” deleted.").waitFor();
  await replace(2, "Wych elm", "garden");
  await plant(4, "Yew", "garden");
  await shows(page, ["Oak", "Ash", "Yew"]);
  await undo();
  await shows(page, ["Oak", "Wych elm", "Ash", "Yew"]);

  await page.getByRole("button", { name: "Delete Ash" }).click();
  await toast(page, "“Ash” deleted.").waitFor();
  await call("DELETE", "/plants/3");
  await call("DELETE", "/plants/4");
  await shows(page, ["Oak", "Wych elm"]);
  await undo();
  await toast(page, "Another client has deleted “Ash” meanwhile.").waitFor();
  await shows(page, ["Oak", "Wych elm"]);

  await page.getByRole("button", { name: "Oak", exact: true }).focus();
  await page.keyboard.press("e");
  await page.getByRole("dialog").getByLabel("Name").fill("English oak");
  await page.keyboard.press("Enter");
  await toast(page, "“English oak” saved.").waitFor();
  await replace(1, "Red oak", "garden");
  await shown(page, "Red oak").waitFor();
  await undo();
  await toast(page, "“English oak” has changed again: nothing was undone.").waitFor();
  assert.ok((await stored()).includes("Red oak"));
  page.check();
}

/// Without the stream, the list is read when the user returns or asks for it. The stream is opened again when it can be.
async function away(browser) {
  await plant(1, "Oak", "");
  const page = await openPage(browser);
  page.tolerate(/status of (404|429|503)/, /ERR_FAILED/);
  const asked = [];
  let status = 503;
  await page.route("**/events", (route) => {
    asked.push(status);
    if (status === 200) return route.continue();
    return status === 0 ? route.abort() : route.fulfill({ status, json: { error: status * 100, message: "not now" } });
  });
  await page.goto("/");
  await signIn(page, TOKEN);
  await shown(page, "Oak").waitFor();
  await until("the first attempt", () => asked.length > 0);
  for (const next of [429, 0]) {
    status = next;
    await until(`an attempt with ${next}`, () => asked.includes(next));
  }
  await plant(2, "Elm", "");
  await page.getByRole("button", { name: "Refresh" }).click();
  await shown(page, "Elm").waitFor();
  assert.equal(await page.locator("#trouble").isVisible(), false, "the attempts are not shown");
  status = 200;
  await until("the stream", () => asked.includes(200));
  await plant(3, "Ash", "");
  await shown(page, "Ash").waitFor();

  // A hidden tab closes its stream, and opens it again when the user returns.
  const show = (state) =>
    page.evaluate((visibility) => {
      Object.defineProperty(document, "visibilityState", { value: visibility, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
  const closed = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/events"));
  await show("hidden");
  await closed;
  await plant(4, "Yew", "");
  const opened = page.waitForRequest((request) => request.url().endsWith("/events"));
  await show("visible");
  assert.ok((await opened).headers()["last-event-id"], "the last event is named");
  await shown(page, "Yew").waitFor();

  // A server without the stream is not asked again.
  await show("hidden");
  [status, asked.length] = [404, 0];
  await show("visible");
  await until("the attempt", () => asked.length === 1);
  await add(page, { name: "Fir" });
  await dismiss(page, "“Fir” added.");
  await plant(6, "Box", "");
  await page.getByRole("button", { name: "Refresh" }).click();
  await shown(page, "Box").waitFor();
  assert.equal(asked.length, 1);
  page.check();
}

main(() => withBrowser({ appearing, undisturbed, undoing, away }[PART]));
