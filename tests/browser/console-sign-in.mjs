// Signing in with pasted tokens, and the message for each kind of invalid token.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { signIn, signedIn, until } from "./garden.mjs";

const { PART, REVOKED } = process.env;

const PASTED = [
  `export TOKEN=${TOKEN}`,
  `TOKEN=${TOKEN}`,
  `TOKEN="${TOKEN}"`,
  `export TOKEN='${TOKEN}';`,
  `$env:TOKEN = "${TOKEN}"`,
  `Bearer ${TOKEN}`,
  `bearer ${TOKEN}`,
  `Authorization: Bearer ${TOKEN}`,
  `"Authorization: Bearer ${TOKEN}"`,
  `“${TOKEN}”`,
  `'${TOKEN}'`,
  `  \u00a0${TOKEN}\t `,
];

async function pasting(browser) {
  const page = await openPage(browser);
  await page.goto("/");
  for (const pasted of PASTED) {
    await signIn(page, pasted);
    await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
    assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), TOKEN, pasted);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Access token").waitFor();
  }
  page.check();
}

/// Asserts that the field shows the error, also to a screen reader, and has the focus.
async function fails(page, words) {
  await page.locator("#paste-error").getByText(words).waitFor();
  const field = page.getByLabel("Access token");
  await until("the field to have the focus", () => field.evaluate((element) => element === document.activeElement));
  assert.equal(await field.getAttribute("aria-invalid"), "true", words);
  assert.ok((await field.getAttribute("aria-describedby")).split(" ").includes("paste-error"));
}

async function failing(browser) {
  const page = await openPage(browser);
  page.tolerate(/status of 401/);
  let requests = 0;
  page.on("request", (request) => (requests += new URL(request.url()).pathname === "/plants" ? 1 : 0));
  await page.goto("/");
  const field = page.getByLabel("Access token");
  // Mistakes that the page finds without the server.
  const swapped = TOKEN.at(-1) === "0" ? "1" : "0";
  const mistyped = [
    ["", "Paste a token first."],
    ["two words", "A token is one word"],
    [TOKEN.slice(0, -3), "This token is incomplete: it has 39 of 42 characters."],
    [`${TOKEN}00`, "This token is too long: it has 44 characters instead of 42."],
    [TOKEN.slice(0, -1) + swapped, "This token is mistyped"],
    [`${TOKEN.slice(0, 20)}-${TOKEN.slice(21)}`, "This token is mistyped"],
  ];
  for (const [token, words] of mistyped) {
    await signIn(page, token);
    await fails(page, words);
    assert.equal(await field.inputValue(), token);
  }
  assert.equal(requests, 0);
  await checkAccessibility(page, "a mistyped token");
  await picture(page, "mistyped");

  // A token that the server rejects stays in the field, so that the user can correct it.
  await signIn(page, REVOKED);
  await fails(page, "The server rejected this token: it is unknown there, or it has expired or was revoked.");
  assert.equal(await field.inputValue(), REVOKED);
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), null);
  await checkAccessibility(page, "a rejected token");
  await picture(page, "rejected");
  await signIn(page, "eyJhbGciOiJFZERTQSJ9.e30.c2ln");
  await fails(page, "The server rejected this token");
  await field.press("End");
  await field.press("x");
  assert.equal(await field.getAttribute("aria-invalid"), null, "the error disappears when the token is changed");
  page.check();

  // A token that has worked in this tab is reported as expired or revoked, both on refresh and after a reload.
  const pages = [await signedIn(browser), await signedIn(browser)];
  for (const tab of pages) tab.tolerate(/status of 401/);
  await ask("revoke first");
  const [refreshing, reloading] = pages;
  const ended = "Your token worked in this tab and no longer does: it has expired or was revoked.";
  await until("the token to be rejected", async () => {
    await refreshing.evaluate("document.getElementById('refresh').click()");
    return refreshing.getByText(ended).isVisible();
  });
  await reloading.reload();
  await reloading.getByText(ended).waitFor();
  await checkAccessibility(reloading, "a token that has ended");
  await picture(reloading, "ended");
  for (const tab of pages) {
    assert.equal(await tab.getByLabel("Access token").inputValue(), "");
    assert.equal(await tab.evaluate("sessionStorage.getItem('plantstore-token')"), null);
    tab.check();
  }
}

/// Returns all text that the page shows, sorted, with what the browser itself adds to an element.
async function visibleText(page) {
  const session = await page.context().newCDPSession(page);
  const { nodes } = await session.send("Accessibility.getFullAXTree");
  return nodes.filter(({ ignored, role }) => !ignored && role.value === "StaticText").map(({ name }) => name.value).sort();
}

async function loading(browser) {
  const page = await openPage(browser);
  const requested = [];
  page.on("request", (request) => requested.push(new URL(request.url()).pathname));
  await page.goto("/", { waitUntil: "networkidle" });
  assert.deepEqual(await visibleText(page), [
    "API documentation",
    "Access token",
    "Come in and see your plants",
    "For programs: ",
    "Paste an access token of this service. It stays in this tab and is forgotten when you close it or sign out; on a computer that others use, sign out.",
    "Sign in",
    "plantstore",
  ]);
  await signIn(page, TOKEN);
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  const files = requested.filter((path) => path === "/" || /\.\w+$/.test(path));
  assert.ok(files.length <= 6, files.join(" "));
  page.check();

  // The modules are joined by the server, and work without it as they are in the source.
  const modules = await openPage(browser);
  const sources = new URL("../../crates/server/src/web/console/", import.meta.url);
  const loaded = [];
  await modules.route("**/console/*.js", (route) => {
    const [name] = new URL(route.request().url()).pathname.split("/").slice(-1);
    loaded.push(name);
    const body = name === "settings.js" ? "export const settings = null;" : readFileSync(new URL(name, sources), "utf8");
    return route.fulfill({ body, contentType: "text/javascript" });
  });
  await modules.goto("/");
  await signIn(modules, TOKEN);
  await modules.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  assert.ok(loaded.length > 20, loaded.join(" "));
  modules.check();
}

main(() => withBrowser({ pasting, failing, loading }[PART]));
