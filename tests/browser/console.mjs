// The console: signing in, adding, deleting, undoing, and errors.

import assert from "node:assert/strict";
import { TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { add, call, dismiss, plant, reload, shown, signIn, signedIn, stored, toast, until } from "./garden.mjs";

const { BOB, READS_ONLY, REVOKED, WRITES_ONLY } = process.env;

/// A token signs in one tab and is stored nowhere else.
async function signingIn(browser) {
  const page = await openPage(browser);
  page.tolerate(/status of 401/);
  await page.goto("/");
  const field = page.getByLabel("Access token");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Paste a token first.").waitFor();
  await signIn(page, "two words");
  await page.getByText("A token is one word").waitFor();
  await signIn(page, REVOKED);
  await page.getByText("The server rejected this token").waitFor();
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), null);

  await field.fill(TOKEN);
  assert.equal(await field.getAttribute("type"), "password");
  await page.getByRole("button", { name: "Show the token" }).click();
  assert.equal(await field.getAttribute("type"), "text");
  await field.press("Enter");
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  const everywhere = await page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href, history.state])");
  assert.ok(!everywhere.includes(TOKEN), everywhere);
  assert.deepEqual(await page.context().cookies(), []);
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), TOKEN);

  await page.reload();
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  const other = await page.context().newPage();
  await other.goto("/");
  await other.getByLabel("Access token").waitFor();

  await page.getByRole("button", { name: "Sign out" }).click();
  await field.waitFor();
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), null);
  await page.reload();
  await field.waitFor();
  page.check();
}

async function addingAndDeleting(browser) {
  const page = await signedIn(browser);
  await add(page, { name: "Monstera", tag: "indoor" });
  await toast(page, "“Monstera” added.").waitFor();
  assert.equal(await stored(), '[{"id":1,"name":"Monstera","tag":"indoor"}]');
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Monstera");
  await dismiss(page, "“Monstera” added.");
  await add(page, { name: "Ficus" });
  await shown(page, "Ficus").waitFor();
  assert.equal(await stored(), '[{"id":1,"name":"Monstera","tag":"indoor"},{"id":2,"name":"Ficus"}]');

  // An addition can be undone as well.
  await toast(page, "“Ficus” added.").getByRole("button", { name: "Undo" }).click();
  await until("the addition to be undone", async () => !(await stored()).includes("Ficus"));

  await page.getByRole("button", { name: "Delete Monstera" }).click();
  await toast(page, "“Monstera” deleted.").waitFor();
  assert.equal(await shown(page, "Monstera").count(), 0);
  assert.ok((await stored()).includes("Monstera"), "the deletion is not sent while it can be undone");
  await toast(page, "“Monstera” deleted.").getByRole("button", { name: "Undo" }).click();
  await shown(page, "Monstera").waitFor();
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Monstera");

  await page.getByRole("button", { name: "Delete Monstera" }).click();
  await dismiss(page, "“Monstera” deleted.");
  await until("the plant to be deleted", async () => (await stored()) === "[]");
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();

  // A tab sends its pending deletions when it is closed.
  await add(page, { name: "Fern" });
  await page.getByRole("button", { name: "Delete Fern" }).click();
  await toast(page, "“Fern” deleted.").waitFor();
  assert.ok((await stored()).includes("Fern"));
  await page.goto("about:blank");
  await until("the plant to be deleted by the closed tab", async () => (await stored()) === "[]");
  page.check();
}

/// Only ids that are certainly free on the server are suggested.
async function suggestedIds(browser) {
  for (const [id, name] of [[1, "Aloe"], [2, "Basil"]]) await plant(id, name, "kitchen");
  const page = await signedIn(browser);
  const suggested = async () => {
    await page.getByRole("button", { name: "Add a plant" }).click();
    const id = await page.getByLabel("Id", { exact: true }).inputValue();
    await page.keyboard.press("Escape");
    return id;
  };
  assert.equal(await suggested(), "3");
  await page.getByRole("button", { name: "Delete Basil" }).click();
  assert.equal(await suggested(), "3", "the deletion can still be undone");
  let release;
  const held = new Promise((resolve) => (release = resolve));
  await page.route("**/plants/2*", async (route) => {
    await held;
    await route.continue();
  });
  const sent = page.waitForRequest("**/plants/2*");
  await dismiss(page, "“Basil” deleted.");
  await sent;
  assert.equal(await suggested(), "3", "the response has not arrived");
  release();
  await until("the free id to be suggested", async () => (await suggested()) === "2");
  await add(page, { name: "Cedar" });
  await shown(page, "Cedar").waitFor();
  assert.equal(await stored(), '[{"id":1,"name":"Aloe","tag":"kitchen"},{"id":2,"name":"Cedar"}]');

  // Beyond the integers that a floating-point number holds, the smallest free id is suggested.
  await add(page, { id: "9007199254740990", name: "Dill" });
  await shown(page, "Dill").waitFor();
  assert.equal(await suggested(), "9007199254740991");
  await add(page, { name: "Elm" });
  await shown(page, "Elm").waitFor();
  assert.equal(await suggested(), "3");
  for (const id of ["1", "2", "9007199254740990", "9007199254740991"]) await call("DELETE", `/plants/${id}`);
  page.check();
}

/// Signing out sends the pending deletions once, and cancels everything else.
async function signingOut(browser) {
  for (const [id, name] of [[1, "Oak"], [2, "Elm"]]) await plant(id, name, "garden");
  const page = await openPage(browser);
  page.tolerate(/ERR_FAILED/);
  await page.clock.install();
  await page.goto("/");
  await signIn(page, TOKEN);
  await shown(page, "Elm").waitFor();
  let [isOut, sent] = [false, []];
  page.on("request", (request) => sent.push(`${request.method()} ${new URL(request.url()).pathname}`));
  // A list, a deletion and an addition that get no response, and a deletion that can still be undone.
  await page.route("**/plants*", (route) => route.abort());
  await page.route("**/plants/1*", (route) => (isOut ? route.continue() : route.abort()));
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("The server cannot be reached. Trying again in").waitFor();
  await page.getByRole("button", { name: "Delete Oak" }).click();
  await dismiss(page, "“Oak” deleted.");
  await page.getByRole("button", { name: "Delete Elm" }).click();
  const form = await add(page, { name: "Ash" });
  await form.getByRole("button", { name: "Adding…" }).waitFor();
  await page.keyboard.press("Escape");
  await until("all requests to be sent", async () => ["GET /plants", "DELETE /plants/1", "POST /plants"].every((attempt) => sent.includes(attempt)));
  [isOut, sent] = [true, []];
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Access token").waitFor();
  const before = sent.length;
  // Longer than the timeouts of retries, responses and undo.
  await page.clock.runFor("02:00");
  await until("both plants to be deleted", async () => (await stored()) === "[]");
  const isDeletion = (request) => request.startsWith("DELETE ");
  // The first deletion may be sent again before the page is signed out.
  assert.deepEqual([...new Set(sent.filter(isDeletion))].sort(), ["DELETE /plants/1", "DELETE /plants/2"]);
  assert.deepEqual(sent.slice(before).filter((request) => !isDeletion(request)), []);
  assert.ok(await page.getByLabel("Access token").isVisible());
  page.check();
}

/// A browser that denies storage to the site: everything works until the page is closed.
async function withoutStorage(browser) {
  const page = await openPage(browser);
  await page.addInitScript(() => {
    for (const storage of ["sessionStorage", "localStorage"]) {
      const deny = () => {
        throw new DOMException("Access is denied for this document.", "SecurityError");
      };
      Object.defineProperty(window, storage, { get: deny });
    }
  });
  await page.goto("/");
  assert.equal(await page.evaluate("try { sessionStorage } catch ({ name }) { name }"), "SecurityError");
  await signIn(page, TOKEN);
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  await add(page, { name: "Fern" });
  await shown(page, "Fern").waitFor();
  await page.getByRole("button", { name: "Table" }).click();
  await page.getByLabel("Sort").selectOption("-name");
  await page.getByRole("button", { name: "Dark theme" }).click();
  await page.getByRole("row", { name: "Fern" }).waitFor();
  // The list after the addition has a new entity tag, which an event may have announced already.
  await until("an unchanged list", async () => {
    await page.getByRole("button", { name: "Refresh" }).click();
    return toast(page, "No plant has changed.").isVisible();
  });
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Access token").waitFor();
  await signIn(page, TOKEN);
  await page.getByRole("button", { name: "Delete Fern" }).click();
  await dismiss(page, "“Fern” deleted.");
  await until("the plant to be deleted", async () => (await stored()) === "[]");
  // The token is lost with the page.
  await page.reload();
  await page.getByLabel("Access token").waitFor();
  page.check();
}

/// Invalid input is reported at its field, by the page if it can, else by the server.
async function rejections(browser) {
  const page = await signedIn(browser);
  page.tolerate(/status of 409/);
  const form = page.getByRole("dialog", { name: "Add a plant" });
  const faults = [
    [{ name: "" }, "Give it a name."],
    [{ name: " \u00a0\u3000 " }, "Give it a name."],
    [{ name: "x".repeat(1_001) }, "Use at most 1,000 characters; these are 1,001."],
    [{ name: "a", tag: "😀".repeat(201) }, "Use at most 200 characters; these are 201."],
    [{ name: "a", id: "007" }, "Write a whole number"],
    [{ name: "a", id: "1.5" }, "Write a whole number"],
    [{ name: "a", id: "9223372036854775808" }, "Write a number from"],
    [{ name: "a", id: "" }, "Write a whole number"],
    [{ name: "a\u0085b" }, "invisible control character"],
  ];
  for (const [fields, words] of faults) {
    await add(page, fields);
    await form.getByText(words).waitFor();
    assert.equal(await page.evaluate("document.activeElement.getAttribute('aria-invalid')"), "true", words);
    await page.keyboard.press("Escape");
  }
  assert.equal(await stored(), "[]");

  await plant(7, "Rose", "balcony");
  await shown(page, "Rose").waitFor();
  await add(page, { id: "7", name: "Tulip" });
  await form.getByText("A plant with the id 7 exists already").waitFor();
  assert.equal(await page.evaluate("document.activeElement.id"), "add-id");
  await form.getByLabel("Id").fill("8");
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await shown(page, "Tulip").waitFor();
  await page.getByRole("button", { name: "Refresh" }).click();
  await shown(page, "Rose").waitFor();
  assert.equal(await stored(), '[{"id":7,"name":"Rose","tag":"balcony"},{"id":8,"name":"Tulip"}]');
  await page.getByRole("button", { name: "Refresh" }).click();
  await toast(page, "No plant has changed.").waitFor();
  for (const id of [7, 8]) await call("DELETE", `/plants/${id}`);
  page.check();
}

/// Every name is shown as text, and every id is exact.
async function strangeNames(browser) {
  const plants = [
    ["-9223372036854775808", "<script>alert(1)</script>", "<b>tag</b>"],
    ["-1", '"><img src=x onerror=alert(1)>', "'\"&lt;"],
    ["0", "שלום עולם ‮reversed‬", "עברית"],
    ["9007199254740993", "🪴👩‍🌾 emoji ﷽ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "🌱"],
    ["9223372036854775806", "n".repeat(1_000), "t".repeat(200)],
    ["9223372036854775807", "  spaces   kept  ", ""],
  ];
  const page = await signedIn(browser);
  await page.evaluate("document.addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective))");
  for (const [id, name, tag] of plants) {
    await add(page, { id, name, tag });
    await page.locator("dialog[open]").waitFor({ state: "hidden" });
  }
  const expected = plants.map(([id, name, tag]) => `{"id":${id},"name":${JSON.stringify(name)}${tag ? `,"tag":${JSON.stringify(tag)}` : ""}}`);
  assert.equal(await stored(), `[${expected.join(",")}]`);
  for (const view of ["Cards", "Table"]) {
    await reload(page);
    await page.getByRole("button", { name: view }).click();
    await page.locator("[data-key]").nth(plants.length - 1).waitFor();
    assert.deepEqual(await page.locator("[data-key] .name").allTextContents(), plants.map(([, name]) => name));
    assert.deepEqual(await page.locator("[data-key] .id").allTextContents(), plants.map(([id]) => id));
    assert.deepEqual(await page.locator("[data-key] .tag").allTextContents(), plants.map(([, , tag]) => tag));
    await picture(page, `strange-${view.toLowerCase()}`);
  }
  assert.equal(await page.locator("#plants script, #plants img, #plants b").count(), 0);

  // The largest id is taken: the smallest free one is suggested.
  await page.getByRole("button", { name: "Add a plant" }).click();
  assert.equal(await page.getByLabel("Id", { exact: true }).inputValue(), "1");
  await page.keyboard.press("Escape");
  // A click shows the whole of a long name.
  await page.locator(".name", { hasText: "nnnn" }).click();
  assert.equal(await page.getByRole("dialog").getByRole("heading").textContent(), "n".repeat(1_000));
  await picture(page, "strange-plant");
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await toast(page, `“${"n".repeat(60)}…” deleted.`).waitFor();
  for (let number = 2; number <= plants.length; number += 1) {
    await page.locator("[data-key]").first().getByRole("button", { name: "Delete" }).click();
    await toast(page, `${number} plants deleted.`).waitFor();
  }
  await dismiss(page, "6 plants deleted.");
  await until("all plants to be deleted", async () => (await stored()) === "[]");
  page.check();
}

/// All actions work without a pointer.
async function keyboardOnly(browser) {
  for (const [id, name] of [[1, "Aloe"], [2, "Basil"], [3, "Cedar"]]) await plant(id, name, "kitchen");
  const page = await openPage(browser);
  const focused = () => page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()");
  await page.goto("/");
  await page.getByLabel("Access token").waitFor();
  await page.keyboard.type(TOKEN);
  await page.keyboard.press("Enter");
  await shown(page, "Cedar").waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Skip to the plants");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "Aloe");
  await page.locator("#skip").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "Aloe");
  await page.evaluate("document.activeElement.blur()");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "Aloe");
  await page.locator("#skip").focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Aloe");
  await page.keyboard.press("ArrowRight");
  assert.equal(await focused(), "Basil");
  await page.keyboard.press("End");
  assert.equal(await focused(), "Cedar");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "Cedar" }).waitFor();
  await page.keyboard.press("Escape");
  assert.equal(await focused(), "Cedar");
  await page.keyboard.press("Tab");
  assert.equal(await focused(), "Delete Cedar");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "Delete Basil");
  await page.keyboard.press("Control+z");
  assert.equal(await focused(), "Cedar");
  await page.keyboard.press("Delete");
  await toast(page, "“Cedar” deleted.").waitFor();
  await page.keyboard.press("Control+z");
  assert.equal(await focused(), "Cedar");

  await page.keyboard.press("/");
  await page.keyboard.type("bas");
  await until("the search result", async () => (await page.locator("[data-key]").count()) === 1);
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "Basil");
  await page.keyboard.press("/");
  await page.keyboard.press("Escape");
  await until("all plants to be listed again", async () => (await page.locator("[data-key]").count()) === 3);
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("n");
  await page.getByRole("dialog", { name: "Add a plant" }).waitFor();
  await page.keyboard.type("Dill");
  await page.keyboard.press("Enter");
  await shown(page, "Dill").waitFor();
  assert.equal(await focused(), "Dill");
  for (const id of [1, 2, 3, 4]) await call("DELETE", `/plants/${id}`);
  page.check();
}

/// The server stops and restarts: the shown plants stay, and nothing is done twice.
async function serverDown(browser) {
  await plant(1, "Oak", "garden");
  const page = await signedIn(browser);
  page.tolerate(/ERR_CONNECTION_REFUSED/, /ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|ERR_SOCKET_NOT_CONNECTED/);
  await ask("stop");
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("The server cannot be reached. Trying again in").waitFor();
  await shown(page, "Oak").waitFor();
  const attempt = page.waitForRequest("**/plants?**");
  await page.getByRole("button", { name: "Try now" }).click();
  await attempt;
  const form = await add(page, { name: "Elm" });
  await form.getByRole("button", { name: "Adding…" }).waitFor();
  // The reason for the wait is shown in the form.
  await form.getByText("The server cannot be reached. Trying again in").waitFor();
  await checkAccessibility(page, "a form that waits");
  await picture(page, "add-waits");
  const addition = page.waitForRequest((request) => request.method() === "POST");
  await form.getByRole("button", { name: "Try now" }).click();
  await addition;
  await ask("start");
  // If the server is back soon, the page retries. Otherwise it asks the user to press the button again.
  await until("the plant to be added", async () => {
    const waits = await page.getByText("Press Add again to go on").isVisible();
    if (waits) await form.getByRole("button", { name: "Add", exact: true }).click();
    return form.isHidden();
  });
  await shown(page, "Elm").waitFor();
  assert.equal(await stored(), '[{"id":1,"name":"Oak","tag":"garden"},{"id":2,"name":"Elm"}]');
  await page.locator("#trouble").waitFor({ state: "hidden" });

  page.tolerate(/ERR_INTERNET_DISCONNECTED/);
  await page.context().setOffline(true);
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByText("You are offline. Trying again in").waitFor();
  await page.context().setOffline(false);
  await page.locator("#trouble").waitFor({ state: "hidden" });
  for (const id of [1, 2]) await call("DELETE", `/plants/${id}`);
  page.check();
}

/// Shared plants, tokens without some scopes, and revoked tokens.
async function access(browser) {
  await plant(1, "Ivy", "wall");
  await call("POST", "/plants", { token: BOB, body: '{"id":1,"name":"Moss"}' });
  const page = await signedIn(browser, { token: BOB });
  page.tolerate(/status of 40[13]/);
  await ask("share reader");
  await until("the grant to take effect", async () => {
    await page.getByRole("button", { name: "Refresh" }).click();
    return shown(page, "Ivy").isVisible();
  });
  await page.getByText("Owners: ada and bob").waitFor();
  assert.deepEqual(await page.locator("[data-key] .owner").allTextContents(), ["ada", "bob"]);
  await page.getByLabel("Owner").selectOption("ada");
  await until("only ada's plants to be listed", async () => (await page.locator("[data-key]").count()) === 1);
  await page.getByRole("button", { name: "Delete Ivy" }).click();
  await dismiss(page, "“Ivy” deleted.");
  await toast(page, "“Ivy” was not deleted. You can read the plants of this owner, not change them").waitFor();
  await shown(page, "Ivy").waitFor();
  await ask("share editor");
  await until("the role editor to take effect", async () => {
    // A role may have changed, so "Refresh" enables the button that was disabled.
    await page.getByRole("button", { name: "Refresh" }).click();
    await page.getByRole("button", { name: "Delete Ivy" }).click();
    await dismiss(page, "“Ivy” deleted.");
    await until("a response", async () => (await stored()) === "[]" || shown(page, "Ivy").isVisible());
    return (await stored()) === "[]";
  });
  await page.getByLabel("Owner").selectOption("");
  await page.getByRole("button", { name: "Delete Moss" }).click();
  await dismiss(page, "“Moss” deleted.");
  await until("bob's plant to be deleted", async () => (await stored(BOB)) === "[]");
  page.check();

  await plant(3, "Yew", "");
  const reader = await signedIn(browser, { token: READS_ONLY });
  reader.tolerate(/status of 40[13]/);
  await reader.getByText("This token cannot add, edit or delete plants.").waitFor();
  await shown(reader, "Yew").waitFor();
  await ask("revoke");
  await until("the token to be rejected", async () => {
    // Clicked by a script, because the button may disappear before a pointer reaches it.
    await reader.evaluate("document.getElementById('refresh').click()");
    return reader.getByText("Your token worked in this tab and no longer does").isVisible();
  });
  assert.equal(await reader.locator("#garden").isVisible(), false);
  assert.equal(await reader.locator("[data-key]").count(), 0, "no plant is left on the page");
  reader.check();

  const writer = await openPage(browser);
  writer.tolerate(/status of 403/);
  await writer.goto("/");
  await signIn(writer, WRITES_ONLY);
  await writer.getByText("The access token lacks the scope plants:read").waitFor();
  assert.equal(await writer.locator("#count").textContent(), "", "the number of plants is unknown");
  await picture(writer, "refused-list");
  await writer.getByRole("button", { name: "Use another token" }).click();
  await writer.getByLabel("Access token").waitFor();
  writer.check();
  await call("DELETE", "/plants/3");
}

main(() =>
  withBrowser(async (browser) => {
    const independent = [signingIn, withoutStorage, addingAndDeleting, suggestedIds, signingOut, rejections, strangeNames, keyboardOnly];
    for (const part of [...independent, serverDown, access]) {
      console.log(part.name);
      await part(browser);
      await Promise.all(browser.contexts().map((context) => context.close()));
    }
  }),
);
