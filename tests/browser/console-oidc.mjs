// Signing in with the login page of an OpenID provider, and every way in which that can fail.

import assert from "node:assert/strict";
import { BASE_URL, TOKEN, ask, checkAccessibility, main, openPage, picture, withBrowser } from "./browser.mjs";
import { add, reload, shown, until } from "./garden.mjs";

const { ISSUER, PART } = process.env;
const { host } = new URL(ISSUER);

const begin = (page) => page.getByRole("button", { name: `Sign in with ${host}` });
const storage = (page) => page.evaluate("({ ...sessionStorage })");

/// A page that may go to the provider, whose pages ask for a font of the internet.
async function openConsole(browser, options) {
  const page = await openPage(browser, options);
  page.requests = [];
  page.on("request", (request) => page.requests.push(request));
  await page.context().route("https://fonts.googleapis.com/**", (route) => route.abort());
  page.tolerate(/foreign request: http:\/\/127\.0\.0\.1:/, /foreign request: https:\/\/fonts\.googleapis\.com/, /ERR_FAILED/);
  await page.goto("/");
  return page;
}

/// Signs in on the provider's pages, from its login page on.
async function logIn(page, name) {
  await page.getByPlaceholder("Enter any login").fill(name);
  await page.getByPlaceholder("and password").fill("a password");
  await page.getByRole("button", { name: "Sign-in" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
}

/// Nothing of the sign-in is in the address, the history or a storage beyond the tab.
async function leavesNoTrace(page) {
  assert.equal(new URL(page.url()).search, "");
  const token = await page.evaluate("sessionStorage.getItem('plantstore-token')");
  const elsewhere = await page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href, history.state])");
  assert.ok(!elsewhere.includes(token), elsewhere);
  assert.equal((await storage(page))["plantstore-sign-in"], undefined, "state, nonce and verifier are removed");
  for (const request of page.requests) assert.ok(!request.url().includes(token), request.url());
  assert.ok(!JSON.stringify(await storage(page)).includes("id_token"), "the ID token is not stored");
}

async function success(browser) {
  const page = await openConsole(browser);
  await begin(page).waitFor();
  assert.equal(await page.evaluate("document.activeElement.id"), "issuer-button");
  await checkAccessibility(page, "sign-in with a provider");
  await picture(page, "sign-in");
  await page.goto("/#q=fern");
  await begin(page).click();
  await page.getByPlaceholder("Enter any login").waitFor();
  const asked = new URL(page.requests.find((request) => request.url().startsWith(`${ISSUER}/auth?`)).url()).searchParams;
  assert.equal(asked.get("code_challenge_method"), "S256");
  assert.equal(asked.get("redirect_uri"), `${BASE_URL}/`);
  for (const name of ["state", "nonce", "code_challenge"]) assert.match(asked.get(name), /^[\w-]{43}$/, name);
  await logIn(page, "bob");
  await page.getByRole("button", { name: "Sign out" }).waitFor();
  await until("the filter from before", () => page.url() === `${BASE_URL}/#q=fern`);
  await leavesNoTrace(page);
  const exchange = page.requests.find((request) => request.url() === `${ISSUER}/token`);
  assert.ok(new URLSearchParams(exchange.postData()).get("code_verifier").length >= 43);
  await add(page, { name: "Fern" });
  await shown(page, "Fern").waitFor();
  await reload(page);
  await shown(page, "Fern").waitFor();

  // Signing out ends the session at the provider, and nothing is left here.
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name: "Yes, sign me out" }).click();
  await begin(page).waitFor();
  await until("an address without anything", () => page.url() === `${BASE_URL}/`);
  const left = Object.keys(await storage(page)).filter((key) => key !== "plantstore-view");
  assert.deepEqual(left, []);
  const jwt = /eyJ[\w-]+\./;
  for (const request of page.requests) assert.doesNotMatch(request.url(), jwt, "no token is in an address, also not the ID token");
  await begin(page).click();
  await page.getByPlaceholder("Enter any login").waitFor();
  await page.goBack();
  await begin(page).waitFor();
  assert.equal(await begin(page).getAttribute("aria-disabled"), "false");

  // A token can be pasted all the same, and signing out then does not concern the provider.
  await page.getByText("Use an access token instead").click();
  await checkAccessibility(page, "sign-in with a token beside a provider");
  await picture(page, "paste");
  await page.getByLabel("Access token").fill(TOKEN);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await begin(page).waitFor();
  assert.ok(page.url().startsWith(`${BASE_URL}/`));
  page.check();

  const narrow = await openConsole(browser, { viewport: { width: 320, height: 640 }, colorScheme: "dark" });
  await begin(narrow).waitFor();
  assert.equal(await narrow.evaluate("document.documentElement.scrollWidth"), 320);
  await checkAccessibility(narrow, "sign-in on a narrow screen");
  await picture(narrow, "sign-in-narrow-dark");
}

async function cancelled(browser) {
  const page = await openConsole(browser);
  await begin(page).click();
  await page.getByRole("link", { name: "Cancel" }).click();
  await page.getByText(`The sign-in at ${host} was cancelled.`).waitFor();
  assert.equal(page.url(), `${BASE_URL}/`);
  assert.deepEqual(await storage(page), {});
  await checkAccessibility(page, "a cancelled sign-in");
  await picture(page, "cancelled");
  assert.ok(!page.requests.some((request) => request.url() === `${ISSUER}/token`));
  await begin(page).click();
  await logIn(page, "bob");
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  page.check();
}

async function forged(browser) {
  const page = await openConsole(browser);
  const rejects = async (address, words) => {
    const before = page.requests.filter((request) => request.url() === `${ISSUER}/token`).length;
    await page.goto(address);
    await page.getByText(words).waitFor();
    assert.equal(page.url(), `${BASE_URL}/`);
    assert.deepEqual(await storage(page), {});
    assert.equal(page.requests.filter((request) => request.url() === `${ISSUER}/token`).length, before, "no code is exchanged");
  };
  const unexpected = "This sign-in has expired or was not started in this tab. Start again.";
  await rejects("/?code=stolen&state=unknown", unexpected);
  await rejects("/?error=access_denied&state=unknown", unexpected);
  // A sign-in that has begun does not accept a response to another, and is over after it.
  await begin(page).click();
  await page.getByPlaceholder("Enter any login").waitFor();
  const { state } = Object.fromEntries(new URL(page.requests.findLast((request) => request.url().startsWith(`${ISSUER}/auth?`)).url()).searchParams);
  await rejects(`/?code=stolen&state=${state}x`, unexpected);
  await rejects(`/?code=stolen&state=${state}`, unexpected);
  await checkAccessibility(page, "a response that was not expected");
  await picture(page, "forged");
  // The response of another issuer.
  await begin(page).click();
  await page.getByPlaceholder("Enter any login").waitFor();
  const { state: next } = Object.fromEntries(new URL(page.requests.findLast((request) => request.url().startsWith(`${ISSUER}/auth?`)).url()).searchParams);
  await rejects(`/?code=stolen&state=${next}&iss=https%3A%2F%2Fother.example`, `The response is not from ${host}. Start again.`);

  // An ID token of another sign-in: its nonce differs.
  await page.route(`${ISSUER}/token`, async (route) => {
    const response = await route.fetch();
    const tokens = await response.json();
    const [header, payload, signature] = tokens.id_token.split(".");
    const claims = { ...JSON.parse(Buffer.from(payload, "base64url")), nonce: "another" };
    const changed = Buffer.from(JSON.stringify(claims)).toString("base64url");
    await route.fulfill({ response, json: { ...tokens, id_token: `${header}.${changed}.${signature}` } });
  });
  await begin(page).click();
  await logIn(page, "bob");
  await page.getByText(`The response of ${host} does not belong to this sign-in. Start again.`).waitFor();
  assert.deepEqual(await storage(page), {});
  page.check();

  // A response that was not expected does not end the sign-in of this tab.
  const member = await openConsole(browser);
  await begin(member).click();
  await logIn(member, "bob");
  await member.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  for (const response of ["code=stolen", "error=access_denied"]) {
    await member.goto(`/?${response}&state=unknown`);
    await member.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
    assert.equal(member.url(), `${BASE_URL}/`);
  }
  await leavesNoTrace(member);
  member.check();
}

/// The keys of the provider change: the login ends, and the next one works at once.
async function rotated(browser) {
  const page = await openConsole(browser);
  page.tolerate(/status of 401/);
  await begin(page).click();
  await logIn(page, "bob");
  await add(page, { name: "Fern" });
  await shown(page, "Fern").waitFor();
  await ask("rotate");
  await until("the end of the login", async () => {
    await page.evaluate("document.getElementById('refresh').click()");
    return page.getByText("Your sign-in has expired. Sign in again to go on.").isVisible();
  });
  await checkAccessibility(page, "an expired sign-in");
  await picture(page, "expired");
  await begin(page).click();
  await logIn(page, "bob");
  await shown(page, "Fern").waitFor();
  await leavesNoTrace(page);
  page.check();
}

/// The provider's token ends while a form is open.
async function expired(browser) {
  const page = await openConsole(browser);
  page.tolerate(/status of 40[01]/);
  // The service tolerates clocks that differ by 30 seconds: this is valid for twenty more, which a sign-in on a busy machine may take.
  await ask("lifetime -10");
  await begin(page).click();
  await logIn(page, "bob");
  await page.getByRole("button", { name: "Sign out" }).waitFor();
  const token = await page.evaluate("sessionStorage.getItem('plantstore-token')");
  await page.getByRole("button", { name: "Add a plant" }).click();
  const form = page.getByRole("dialog", { name: "Add a plant" });
  await form.getByLabel("Name").fill("Monstera");
  await until("the end of the token", async () => (await fetch(`${BASE_URL}/me`, { headers: { Authorization: `Bearer ${token}` } })).status === 401);
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await page.getByText("Your sign-in has expired. Sign in again to go on. What you had typed is kept until then.").waitFor();
  assert.deepEqual(Object.keys(await storage(page)), ["plantstore-draft"]);
  await ask("lifetime 600");
  await begin(page).click();
  await form.waitFor();
  assert.equal(await form.getByLabel("Name").inputValue(), "Monstera");
  await leavesNoTrace(page);
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await shown(page, "Monstera").waitFor();

  // A user of an issuer creates a token that outlives the sign-in.
  await page.getByRole("link", { name: "Access, signed in as bob" }).click();
  await page.getByText(`You are bob, signed in with your account at ${host}, until`).waitFor();
  await page.getByRole("button", { name: "New token" }).click();
  await page.getByRole("button", { name: "Create token" }).click();
  await page.getByRole("dialog", { name: "Copy your new token" }).waitFor();
  const secret = await page.locator("#secret").textContent();
  assert.match(secret, /^pst_/);
  await page.getByRole("button", { name: "Done" }).click();
  await checkAccessibility(page, "the Access page of an issuer's user");
  await picture(page, "access");

  // A code that has expired, or was used already.
  const late = await openConsole(browser);
  late.tolerate(/status of 400/);
  await late.route(`${ISSUER}/token`, async (route) => {
    const fields = new URLSearchParams(route.request().postData());
    fields.set("code", "expired");
    await route.continue({ postData: fields.toString() });
  });
  await begin(late).click();
  await logIn(late, "bob");
  await late.getByText("This sign-in has expired. Start again.").waitFor();
  assert.deepEqual(await storage(late), {});
  page.check();
  late.check();
}

/// A provider that is set up wrongly, or is away.
async function opaque(browser) {
  const page = await openConsole(browser);
  page.tolerate(/status of 401/, /ERR_/, /CORS/);
  await ask("format opaque");
  await begin(page).click();
  await logIn(page, "bob");
  await page.getByText(`${host} signed you in, but this service does not accept its token. Tell the operator of this service.`).waitFor();
  assert.deepEqual(await storage(page), {});
  await picture(page, "opaque");
  await page.route(`${ISSUER}/.well-known/openid-configuration`, (route) => route.abort());
  await begin(page).click();
  await page.getByText(`${host} cannot be reached, or does not let this page in.`).waitFor();
  await page.route(`${ISSUER}/.well-known/openid-configuration`, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), token_endpoint: "https://elsewhere.example/token" } });
  });
  await begin(page).click();
  await page.getByText(`${host} has no token_endpoint at its own address.`).waitFor();
  page.check();
}

main(() => withBrowser({ success, cancelled, forged, rotated, expired, opaque }[PART]));
