// Plants of several users: the owner of a new plant, and actions that the token or role does not allow.

import assert from "node:assert/strict";
import { TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { add, call, dismiss, plant, shown, signIn, signedIn, stored, toast, until } from "./garden.mjs";

const { BOB, PART, READS_ONLY } = process.env;

const addButton = (page) => page.locator("#garden").getByRole("button", { name: "Add a plant" });
const form = (page) => page.getByRole("dialog", { name: "Add a plant" });
const owners = async (page) => (await form(page).getByLabel("Whose plant").locator("option").allTextContents()).join(", ");

/// Signs in as bob, who has no own plants. ada shares her plants with him.
async function shared(browser, role) {
  for (const [id, name] of [[1, "Ivy"], [2, "Moss"]]) await plant(id, name, "wall");
  await ask(`share ${role}`);
  await until("the grant to take effect", async () => (await stored(BOB)).includes("Moss"));
  return signedIn(browser, { token: BOB });
}

/// An editor without plants of their own chooses the owner of a new plant.
async function choosing(browser) {
  const page = await shared(browser, "editor");
  const heading = page.getByRole("heading", { level: 1 });
  assert.equal(await heading.textContent(), "Plants");
  await page.getByText("Owner: ada", { exact: true }).waitFor();
  await addButton(page).click();
  assert.equal(await owners(page), "My own, ada");
  assert.equal(await form(page).getByLabel("Whose plant").inputValue(), "");
  await checkAccessibility(page, "a choice of owners");
  await picture(page, "whose-plant");
  await page.keyboard.press("Escape");

  await add(page, { id: "7", name: "Fern" });
  await page.getByText("Owners: ada and bob").waitFor();
  assert.equal(await heading.textContent(), "Plants");
  assert.deepEqual(await page.locator("[data-key] .owner").allTextContents(), ["ada", "ada", "bob"]);
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Fern", "the new plant has the focus");
  assert.ok(!(await stored(TOKEN)).includes("Fern"));
  await page.keyboard.press("Control+z");
  await until("the addition to be undone", async () => !(await stored(BOB)).includes("Fern"));
  await page.getByText("Owner: ada", { exact: true }).waitFor();

  await addButton(page).click();
  assert.equal(await owners(page), "My own, ada");
  // The suggested id is free for the chosen owner; one that was typed stays.
  const id = form(page).getByLabel("Id", { exact: true });
  assert.equal(await id.inputValue(), "1");
  await form(page).getByLabel("Whose plant").selectOption("ada");
  assert.equal(await id.inputValue(), "3");
  await form(page).getByLabel("Whose plant").selectOption("");
  await id.fill("40");
  await form(page).getByLabel("Whose plant").selectOption("ada");
  assert.equal(await id.inputValue(), "40");
  await form(page).getByLabel("Name").fill("Oak");
  await form(page).getByRole("button", { name: "Add", exact: true }).click();
  await toast(page, "“Oak” added to ada’s plants.").waitFor();
  assert.ok((await stored(TOKEN)).includes("Oak"));

  // If the list is filtered by an owner, this owner is preselected for a new plant.
  await add(page, { name: "Elm" });
  await page.getByLabel("Owner").selectOption("ada");
  await addButton(page).click();
  assert.equal(await form(page).getByLabel("Whose plant").inputValue(), "ada");
  await page.keyboard.press("Escape");
  page.check();

  // If all plants belong to the user, the form offers no choice.
  const alone = await signedIn(browser);
  await add(alone, { id: "50", name: "Yew" });
  await alone.getByText("Owner: ada", { exact: true }).waitFor();
  await addButton(alone).click();
  await form(alone).getByLabel("Name").waitFor();
  assert.equal(await form(alone).getByLabel("Whose plant").isVisible(), false);
  alone.check();
}

/// Hides, from the start, actions that the token does not allow, and those that the role does not allow once that is known.
async function rejected(browser) {
  const page = await shared(browser, "reader");
  page.tolerate(/status of 403/);
  await call("POST", "/plants", { token: BOB, body: '{"id":9,"name":"Sage"}' });
  await page.getByRole("button", { name: "Refresh" }).click();
  await shown(page, "Sage").waitFor();
  await page.getByRole("button", { name: "Delete Ivy" }).click();
  await dismiss(page, "“Ivy” deleted.");
  await toast(page, "“Ivy” was not deleted. You can read the plants of this owner, not change them").waitFor();
  await page.getByText("You can read the plants of ada, not change them.", { exact: true }).waitFor();
  for (const view of ["Table", "Cards"]) {
    await page.getByRole("button", { name: view }).click();
    assert.equal(await page.getByRole("button", { name: /^Delete/ }).count(), 1, "the user may delete their own plants");
    await page.getByRole("button", { name: "Delete Sage" }).waitFor();
  }
  await page.getByRole("button", { name: "Ivy", exact: true }).focus();
  await page.keyboard.press("Delete");
  await page.getByRole("button", { name: "Ivy", exact: true }).click();
  await page.getByRole("dialog", { name: "Ivy" }).waitFor();
  assert.equal(await page.locator("#plant-delete").isVisible(), false);
  await page.keyboard.press("Escape");
  await shown(page, "Ivy").waitFor();
  await addButton(page).click();
  assert.equal(await owners(page), "My own, ada (read only)");
  assert.equal(await form(page).getByRole("option", { name: "ada (read only)" }).isDisabled(), true);
  await page.keyboard.press("Escape");
  await checkAccessibility(page, "a reader's page");
  await picture(page, "reader");
  page.check();

  const reading = await openPage(browser);
  await reading.goto("/");
  await signIn(reading, READS_ONLY);
  await shown(reading, "Moss").waitFor();
  assert.equal(await addButton(reading).count(), 0);
  await reading.keyboard.press("n");
  assert.equal(await form(reading).isVisible(), false);
  await reading.getByText("This token cannot add, edit or delete plants.", { exact: true }).waitFor();
  assert.equal(await reading.getByRole("button", { name: /^Delete/ }).count(), 0);
  await checkAccessibility(reading, "a page for reading");
  await picture(reading, "reading");
  // The scopes of a token never change, so the buttons stay disabled after a reload. Another token enables them.
  await reading.reload();
  await shown(reading, "Moss").waitFor();
  assert.equal(await addButton(reading).count(), 0);
  await reading.getByRole("button", { name: "Sign out" }).click();
  await signIn(reading, TOKEN);
  await addButton(reading).waitFor();
  await reading.getByRole("button", { name: "Delete Moss" }).waitFor();
  reading.check();
}

main(() => withBrowser({ choosing, rejected }[PART]));
