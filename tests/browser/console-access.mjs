// The Access page: tokens and shares of the user, with everything that the token's scopes do not allow.

import assert from "node:assert/strict";
import { BASE_URL, ask, checkAccessibility, main, picture, withBrowser } from "./browser.mjs";
import { call, plant, shown, signIn, signedIn, stored, toast, until } from "./garden.mjs";

const { BOB, BOB_FULL, FULL, PART } = process.env;
const NARROW = { viewport: { width: 320, height: 640 }, colorScheme: "dark" };

const api = async (method, path, token, body) => JSON.parse((await call(method, path, { token, body: body && JSON.stringify(body) })) || "null");
const entry = (page, name) => page.locator(".entry").filter({ has: page.getByRole("heading", { name, exact: true }) });
const confirm = (page) => page.locator("#confirm-dialog").getByRole("button", { name: "Revoke" });

async function inspect(page, state) {
  const [inside, width] = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]");
  assert.ok(inside <= width, `${state} is ${inside} pixels wide on a screen of ${width}`);
  await checkAccessibility(page, state);
  await picture(page, state, { fullPage: true });
}

async function openAccess(page) {
  await page.getByRole("link", { name: "Access, signed in as" }).click();
  await page.getByRole("heading", { name: "Access", exact: true }).waitFor();
}

/// Opens the form for a new token and creates one; returns its secret.
async function createToken(page, label, { without = [], expiry } = {}) {
  await page.getByRole("button", { name: "New token" }).click();
  const form = page.getByRole("dialog", { name: "New token" });
  await form.getByLabel("Label").fill(label);
  for (const scope of without) await form.getByLabel(scope).uncheck();
  if (expiry) await form.getByLabel("It works for").selectOption(expiry);
  await form.getByRole("button", { name: "Create token" }).click();
  const made = page.getByRole("dialog", { name: "Copy your new token" });
  await made.waitFor();
  return made.locator("#secret").textContent();
}

async function tokens(browser) {
  const page = await signedIn(browser, { token: FULL, permissions: ["clipboard-read", "clipboard-write"] });
  assert.equal(await page.locator("#user").textContent(), "ada");
  await openAccess(page);
  assert.equal(page.url(), `${BASE_URL}/#access`);
  assert.equal(await page.title(), "Access · plantstore");
  assert.equal(await page.evaluate("document.activeElement.id"), "access-title");
  await page.getByText("You are ada, signed in with the token “full”, until").waitFor();
  await entry(page, "full").getByText("In use here").waitFor();
  await entry(page, "full").getByText(/^Created /).waitFor();
  await inspect(page, "tokens");

  const secret = await createToken(page, "watering script", { without: ["Add and edit plants", "Delete plants"], expiry: "7" });
  await inspect(page, "secret");
  // The only copy survives a press of Escape and of Back.
  await page.keyboard.press("Escape");
  await page.goBack();
  await page.goBack();
  await page.getByRole("button", { name: "Copy" }).click();
  await page.getByText("Copied.").waitFor();
  assert.equal(await page.evaluate("navigator.clipboard.readText()"), secret);
  await page.getByRole("button", { name: "Done" }).click();
  await until("the secret to be gone", async () => !(await page.content()).includes(secret));
  assert.ok(!(await page.evaluate("JSON.stringify({...sessionStorage})")).includes(secret));
  const { user, token } = await api("GET", "/me", secret);
  assert.deepEqual([user, token.label, token.scopes], ["ada", "watering script", ["plants:read"]]);
  assert.ok(new Date(token.expires_at) - Date.now() < 7.01 * 86_400_000);
  // The second press of Back may have left the page beneath the dialog.
  if (page.url() !== `${BASE_URL}/#access`) await openAccess(page);
  await entry(page, "watering script").getByText("See plants").waitFor();
  await createToken(page, "not copied");
  assert.equal(await page.locator("#secret-status").textContent(), "");
  await page.getByRole("button", { name: "Done" }).click();

  // A form that is filled in wrongly says so, and does nothing.
  await page.getByRole("button", { name: "New token" }).click();
  const form = page.getByRole("dialog", { name: "New token" });
  for (const scope of ["See plants", "Add and edit plants", "Delete plants"]) await form.getByLabel(scope).uncheck();
  await form.getByRole("button", { name: "Create token" }).click();
  await form.getByText("Choose at least one thing that the token may do.").waitFor();
  await inspect(page, "token-form");
  await page.goBack();
  await form.waitFor({ state: "hidden" });
  assert.equal(page.url(), `${BASE_URL}/#access`);

  // The form is closed before the response: the page says that there is a token whose secret was not shown.
  let respond;
  const closed = new Promise((resolve) => (respond = resolve));
  await page.route("**/tokens", async (route) => {
    if (route.request().method() === "POST") await closed;
    await route.continue();
  });
  await page.getByRole("button", { name: "New token" }).click();
  await form.getByLabel("Label").fill("closed too early");
  await form.getByRole("button", { name: "Create token" }).click();
  await form.getByRole("button", { name: "Cancel" }).click();
  respond();
  await toast(page, "“closed too early” was created, but its secret was not shown. Revoke it.").waitFor();
  await entry(page, "closed too early").waitFor();
  await page.unroute("**/tokens");

  await page.getByRole("button", { name: "Revoke watering script" }).click();
  await page.getByRole("dialog", { name: "Revoke “watering script”?" }).waitFor();
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Cancel");
  await inspect(page, "revoke");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Revoke watering script" }).click();
  await confirm(page).click();
  await toast(page, "“watering script” revoked.").waitFor();
  await until("the revocation", async () => (await fetch(`${BASE_URL}/me`, { headers: { Authorization: `Bearer ${secret}` } })).status === 401);
  await page.locator("#ended-count").click();
  await entry(page, "watering script").getByText("revoked", { exact: true }).waitFor();
  await inspect(page, "ended");

  // The address and the history work as everywhere else.
  await page.reload();
  await entry(page, "full").waitFor();
  await page.getByRole("link", { name: "Plants" }).click();
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  assert.equal(await page.title(), "plantstore");
  await page.goBack();
  await entry(page, "full").waitFor();

  // The token in use can be revoked, too.
  await page.getByRole("button", { name: "Revoke full" }).click();
  await page.getByText("you will be signed out").waitFor();
  await confirm(page).click();
  await page.getByText("You have revoked the token that you were signed in with.").waitFor();
  assert.deepEqual(await page.evaluate("Object.keys(sessionStorage)"), []);
  page.check();
}

async function shares(browser) {
  await plant(1, "Ivy", "wall");
  const page = await signedIn(browser, { token: FULL });
  await openAccess(page);
  await page.getByText("Only you see your plants.").waitFor();
  await page.getByText("No other user shares plants with you.").waitFor();
  const share = async (user, role) => {
    await page.getByRole("button", { name: "Share my plants" }).click();
    const form = page.getByRole("dialog", { name: "Share my plants" });
    await form.getByLabel("User name").fill(user);
    await form.getByLabel(role).check();
    await form.getByRole("button", { name: "Share", exact: true }).click();
    return form;
  };
  const form = await share("", "reader");
  await form.getByText("Write the name of the user to share with.").waitFor();
  await inspect(page, "share-form");
  await page.keyboard.press("Escape");
  page.tolerate(/status of 400/);
  await share("ada", "reader");
  await form.locator("#share-error").waitFor();
  await page.keyboard.press("Escape");
  await share("bob", "reader");
  await entry(page, "bob").getByText("bob can see your plants").waitFor();
  await api("PUT", "/shares/received/ada", BOB_FULL);
  await until("the share", async () => (await stored(BOB)).includes("Ivy"));
  await share("bob", "editor");
  await entry(page, "bob").getByText("bob can see, add, edit and delete your plants").waitFor();
  await share("a user who does not exist yet".replaceAll(" ", "-"), "reader");
  await entry(page, "a-user-who-does-not-exist-yet").waitFor();
  await ask("share of bob");
  await until("a share of bob's", async () => {
    await page.getByRole("button", { name: "Refresh" }).click();
    return page.locator("#received .entry").isVisible();
  });
  await inspect(page, "shares");
  await page.getByRole("button", { name: "See plants of bob" }).click();
  await until("bob's plants", () => page.url() === `${BASE_URL}/#owner=bob`);
  // The role is known before a first rejection.
  await page.getByText("You can read the plants of bob, not change them.").waitFor();
  await page.goBack();
  await page.getByRole("button", { name: "Revoke bob" }).click();
  await confirm(page).click();
  await toast(page, "Your plants are no longer shared with bob.").waitFor();
  await until("the end of the share", async () => !(await stored(BOB)).includes("Ivy"));
  await until("only what bob shares", async () => (await entry(page, "bob").count()) === 1);
  page.check();

  const narrow = await signedIn(browser, { token: FULL, ...NARROW });
  await openAccess(narrow);
  await entry(narrow, "full").waitFor();
  await inspect(narrow, "narrow-dark");
  await narrow.getByRole("button", { name: "New token" }).click();
  await inspect(narrow, "narrow-dark-token");
  narrow.check();
}

/// A share gives access after the other user has accepted it, and until that user leaves.
async function offers(browser) {
  await plant(1, "Ivy", "wall");
  const offer = (role) => api("PUT", "/shares/bob", FULL, { role });
  const state = async () => (await api("GET", "/shares", FULL)).granted[0].state;
  const page = await signedIn(browser, { token: BOB_FULL });
  const [badge, empty] = [page.locator("#offer-count"), page.getByRole("heading", { name: "Nothing planted yet" })];
  await empty.waitFor();
  assert.equal(await badge.isVisible(), false);
  await offer("reader");
  await page.getByRole("button", { name: "Refresh" }).click();
  await page.getByRole("link", { name: "Access, signed in as bob, 1 offer waiting", exact: true }).waitFor();
  assert.equal(await badge.textContent(), "1");
  await empty.waitFor();
  await inspect(page, "badge");
  const owner = await signedIn(browser, { token: FULL });
  await openAccess(owner);
  await entry(owner, "bob").getByText("bob can see your plants after accepting · offered").waitFor();

  // Offers that fail, or are withdrawn meanwhile.
  page.tolerate(/status of (404|507)/);
  await openAccess(page);
  await entry(page, "ada").getByText("You can see these plants after accepting").waitFor();
  await inspect(page, "offers");
  const accept = page.getByRole("button", { name: "Accept the offer of ada" });
  await page.route("**/shares/received/ada", (route) => route.fulfill({ status: 507, body: '{"error":50700,"message":"the disk is full"}' }));
  await accept.click();
  await toast(page, "The disk is full.").waitFor();
  await page.unroute("**/shares/received/ada");
  await until("the end of the attempt", async () => (await entry(page, "ada").getAttribute("aria-busy")) === "false");
  assert.equal(await state(), "offered");
  await api("DELETE", "/shares/bob", FULL);
  await accept.click();
  await toast(page, "The offer of ada is no longer there.").waitFor();
  await badge.waitFor({ state: "hidden" });
  assert.equal(await accept.count(), 0);

  // An offer that was made meanwhile is there when the user returns to the tab. The keyboard accepts it, and stays at the shares.
  await offer("reader");
  await page.evaluate("Date.now = ((now) => () => now() + 60_000)(Date.now); dispatchEvent(new Event('focus'))");
  await badge.waitFor();
  await accept.focus();
  await page.keyboard.press("Enter");
  await toast(page, "The plants of ada are in your list.").waitFor();
  await badge.waitFor({ state: "hidden" });
  await until("the focus to move", () => page.evaluate("document.activeElement.id === 'shares-title'"));
  assert.equal(await state(), "accepted");
  await owner.getByRole("button", { name: "Refresh" }).click();
  await entry(owner, "bob").getByText("bob can see your plants · accepted").waitFor();
  await inspect(owner, "accepted");
  await page.getByRole("button", { name: "See plants of ada" }).click();
  await shown(page, "Ivy").waitFor();
  await page.goBack();

  await page.getByRole("button", { name: "Leave ada" }).click();
  await page.getByRole("dialog", { name: "Leave the plants of ada?" }).waitFor();
  assert.equal(await page.evaluate("document.activeElement.textContent"), "Cancel");
  await inspect(page, "leave");
  await page.locator("#confirm-dialog").getByRole("button", { name: "Leave" }).click();
  await toast(page, "The plants of ada are no longer in your list.").waitFor();
  await page.getByText("No other user shares plants with you.").waitFor();
  assert.equal(await stored(BOB), "[]");
  await page.getByRole("link", { name: "Plants" }).click();
  await empty.waitFor();
  page.check();
  owner.check();

  // A new offer, on a phone. The owner does not learn that it is declined.
  await offer("editor");
  const phone = await signedIn(browser, { token: BOB_FULL, ...NARROW });
  await phone.locator("#offer-count").waitFor();
  await inspect(phone, "narrow-dark-badge");
  await openAccess(phone);
  await entry(phone, "ada").waitFor();
  await inspect(phone, "narrow-dark-offers");
  await phone.getByRole("button", { name: "Decline the offer of ada" }).click();
  await toast(phone, "Offer of ada declined.").waitFor();
  await phone.locator("#offer-count").waitFor({ state: "hidden" });
  assert.equal(await entry(phone, "ada").count(), 0);
  assert.equal(await state(), "offered");
  assert.equal(await stored(BOB), "[]");
  phone.check();
}

/// A token that lacks a scope: the page says so in one sentence, and sends no request that would be rejected.
async function forbidden(browser) {
  const page = await signedIn(browser);
  const requests = [];
  page.on("request", (request) => requests.push(new URL(request.url()).pathname));
  await openAccess(page);
  await page.getByText("This token lacks the scope tokens:manage, so it cannot list, create or revoke tokens.", { exact: true }).waitFor();
  await page.getByText("This token lacks the scope shares:manage, so it cannot see or change what is shared.", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: /New token|Share my plants/ }).count(), 0);
  await inspect(page, "forbidden");
  assert.deepEqual(requests.filter((path) => ["/tokens", "/shares"].includes(path)), []);
  page.check();

  // A token gives no more than it has.
  const { secret } = await api("POST", "/tokens", FULL, { label: "small", scopes: ["plants:read", "tokens:manage"], expires_at: new Date(Date.now() + 5 * 86_400_000).toISOString() });
  const small = await signedIn(browser, { token: secret });
  await openAccess(small);
  await small.getByRole("button", { name: "New token" }).click();
  const form = small.getByRole("dialog", { name: "New token" });
  assert.equal(await form.getByLabel("Add and edit plants").isDisabled(), true);
  await form.getByText("Your own token cannot do the rest").waitFor();
  const offered = await form.getByLabel("It works for").locator("option").allTextContents();
  assert.equal(offered.length, 2, offered.join(", "));
  assert.match(offered[1], /^Until .*, like your own token$/);
  await inspect(small, "limited-token-form");
  await form.getByRole("button", { name: "Create token" }).click();
  await small.getByRole("dialog", { name: "Copy your new token" }).waitFor();
  small.check();
}

/// The token ends while a form is open: what was typed is there again after signing in.
async function drafts(browser) {
  await plant(1, "Ivy", "wall");
  const ends = async (open, expected = "What you had typed is kept until then.") => {
    const { secret } = await api("POST", "/tokens", FULL, { scopes: ["plants:read", "plants:write", "tokens:manage", "shares:manage"] });
    const page = await signedIn(browser, { token: secret });
    page.tolerate(/status of 401/);
    await shown(page, "Ivy").waitFor();
    const submit = await open(page);
    const { token } = await api("GET", "/me", secret);
    await call("DELETE", `/tokens/${token.id}`, { token: FULL });
    await until("the revocation", async () => (await fetch(`${BASE_URL}/me`, { headers: { Authorization: `Bearer ${secret}` } })).status === 401);
    await submit();
    await page.getByText(expected).waitFor();
    return page;
  };
  const adding = await ends(async (page) => {
    await page.getByRole("button", { name: "Add a plant" }).click();
    await page.getByRole("dialog").getByLabel("Name").fill("Monstera");
    await page.getByRole("dialog").getByLabel("Tag").fill("indoor");
    return () => page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
  });
  await checkAccessibility(adding, "a draft");
  await picture(adding, "draft");
  await signIn(adding, FULL);
  const form = adding.getByRole("dialog", { name: "Add a plant" });
  await form.waitFor();
  assert.equal(await form.getByLabel("Name").inputValue(), "Monstera");
  assert.equal(await form.getByLabel("Tag").inputValue(), "indoor");
  await form.getByRole("button", { name: "Add", exact: true }).click();
  await shown(adding, "Monstera").waitFor();
  adding.check();

  const editing = await ends(async (page) => {
    await page.getByRole("button", { name: "Ivy", exact: true }).focus();
    await page.keyboard.press("e");
    await page.getByRole("dialog").getByLabel("Name").fill("English ivy");
    return () => page.getByRole("dialog").getByRole("button", { name: "Save", exact: true }).click();
  });
  await signIn(editing, FULL);
  const edited = editing.getByRole("dialog", { name: "Edit the plant" });
  await edited.waitFor();
  assert.equal(await edited.getByLabel("Name").inputValue(), "English ivy");
  assert.equal(await edited.getByLabel("Tag").inputValue(), "wall");
  await edited.getByRole("button", { name: "Save", exact: true }).click();
  await shown(editing, "English ivy").waitFor();
  await call("PUT", "/plants/1", { body: '{"name":"Ivy","tag":"wall"}' });
  editing.check();

  const making = await ends(async (page) => {
    await openAccess(page);
    await page.getByRole("button", { name: "New token" }).click();
    await page.getByRole("dialog").getByLabel("Label").fill("watering script");
    await page.getByRole("dialog").getByLabel("Add and edit plants").uncheck();
    return () => page.getByRole("button", { name: "Create token" }).click();
  });
  await signIn(making, FULL);
  const dialog = making.getByRole("dialog", { name: "New token" });
  await dialog.waitFor();
  assert.equal(await dialog.getByLabel("Label").inputValue(), "watering script");
  assert.equal(await dialog.getByLabel("Add and edit plants").isChecked(), false);
  assert.equal(await dialog.getByLabel("See plants").isChecked(), true);
  making.check();

  // The secret of a new token stays until the user closes it.
  const copying = await ends(async (page) => {
    await openAccess(page);
    await createToken(page, "shown once");
    return () => page.evaluate("document.getElementById('refresh').click()");
  }, "Your token worked in this tab and no longer does");
  assert.match(await copying.locator("#secret").textContent(), /^pst_/);
  await copying.getByRole("button", { name: "Done" }).click();
  await copying.getByLabel("Access token").waitFor();
  copying.check();

  // Another user gets nothing of it.
  const other = await ends(async (page) => {
    await page.getByRole("button", { name: "Add a plant" }).click();
    await page.getByRole("dialog").getByLabel("Name").fill("Secret garden");
    return () => page.getByRole("dialog").getByRole("button", { name: "Add", exact: true }).click();
  });
  await signIn(other, BOB);
  await other.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  assert.equal(await other.locator("dialog[open]").count(), 0);
  assert.ok(!(await other.evaluate("JSON.stringify({...sessionStorage})")).includes("Secret garden"));
  other.check();
}

/// A token that ends within 14 days is replaced with one click, in this tab and on the server.
async function renewal(browser) {
  await plant(1, "Ivy", "wall");
  const scopes = ["plants:read", "plants:write", "plants:delete", "tokens:manage", "shares:manage"];
  const endingIn = async (days, given = scopes) => {
    const expires_at = new Date(Date.now() + days * 86_400_000).toISOString();
    return (await api("POST", "/tokens", FULL, { label: "kitchen", scopes: given, expires_at })).secret;
  };
  const later = await signedIn(browser, { token: await endingIn(15) });
  await shown(later, "Ivy").waitFor();
  assert.equal(await later.locator("#renewal").isVisible(), false, "it ends in 15 days");
  later.check();
  const powerless = await signedIn(browser, { token: await endingIn(13, ["plants:read"]) });
  await powerless.getByText(/^Your token ends .* Ask the operator of this service for a new one\.$/).waitFor();
  assert.equal(await powerless.getByRole("button", { name: "Renew" }).count(), 0);
  powerless.check();

  const old = await endingIn(13);
  const page = await signedIn(browser, { token: old });
  await page.getByText(/^Your token ends .* Renew it for 90 days: you get a new one, and this one is revoked\.$/).waitFor();
  await inspect(page, "ending");
  // A failure changes nothing.
  page.tolerate(/status of 507/);
  await page.route("**/tokens", (route) => route.fulfill({ status: 507, body: '{"error":50700,"message":"the disk is full"}' }));
  await page.getByRole("button", { name: "Renew" }).click();
  await toast(page, "The disk is full.").waitFor();
  await page.unroute("**/tokens");
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), old);

  await page.getByRole("button", { name: "Renew" }).click();
  const dialog = page.getByRole("dialog", { name: "Copy your new token" });
  await dialog.getByText("You stay signed in with it. Programs that used the old one need it.").waitFor();
  const secret = await dialog.locator("#secret").textContent();
  await inspect(page, "renewed");
  await until("the old token to be revoked", async () => (await fetch(`${BASE_URL}/me`, { headers: { Authorization: `Bearer ${old}` } })).status === 401);
  await dialog.getByRole("button", { name: "Done" }).click();
  assert.equal(await page.locator("#renewal").isVisible(), false);
  const { token } = await api("GET", "/me", secret);
  assert.deepEqual([token.label, token.scopes], ["kitchen", scopes]);
  assert.ok(new Date(token.expires_at) - Date.now() > 89.9 * 86_400_000);
  assert.equal((await api("GET", "/tokens", secret)).filter(({ label, state }) => label === "kitchen" && state === "active").length, 3);
  // The tab goes on with the new token.
  await page.getByRole("button", { name: "Delete Ivy" }).click();
  await toast(page, "“Ivy” deleted.").getByRole("button", { name: "Dismiss" }).click();
  await until("the deletion", async () => (await stored()) === "[]");
  await page.reload();
  await page.getByRole("heading", { name: "Nothing planted yet" }).waitFor();
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), secret);

  // Of the other tokens, those that end soon can be renewed, too.
  const { secret: balcony } = await api("POST", "/tokens", FULL, { label: "balcony", scopes: ["plants:read"], expires_at: new Date(Date.now() + 86_400_000).toISOString() });
  await openAccess(page);
  assert.equal(await page.getByRole("button", { name: "Renew full" }).count(), 0);
  await inspect(page, "renewable");
  await page.getByRole("button", { name: "Renew balcony" }).click();
  await dialog.getByText("It is shown only now. Programs that used the old one need it.", { exact: true }).waitFor();
  const successor = await dialog.locator("#secret").textContent();
  await dialog.getByRole("button", { name: "Done" }).click();
  await until("the old token to be revoked", async () => (await fetch(`${BASE_URL}/me`, { headers: { Authorization: `Bearer ${balcony}` } })).status === 401);
  const { token: renewed } = await api("GET", "/me", successor);
  assert.deepEqual([renewed.label, renewed.scopes], ["balcony", ["plants:read"]]);
  assert.ok(new Date(renewed.expires_at) - Date.now() > 89 * 86_400_000);
  assert.equal(await page.evaluate("sessionStorage.getItem('plantstore-token')"), secret);
  page.check();
}

main(() => withBrowser({ tokens, shares, offers, forbidden, drafts, renewal }[PART]));
