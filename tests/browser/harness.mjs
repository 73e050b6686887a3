// The harness itself: a page of the real server in a real browser.

import assert from "node:assert/strict";
import { BASE_URL, ask, main, openPage, picture, withBrowser } from "./browser.mjs";

main(() =>
  withBrowser(async (browser) => {
    const page = await openPage(browser);
    // Chromium requests an icon on its own.
    page.tolerate(/status of 401/);
    await page.goto("/livez");
    assert.equal(await page.textContent("body"), process.env.EXPECTED ?? '{"status":"live"}');
    await picture(page, "livez");
    page.check();

    // Errors of a page are reported.
    await page.evaluate("fetch('http://127.0.0.1:1/').catch(() => {})");
    assert.throws(page.check, /foreign request: http:\/\/127.0.0.1:1\//);

    assert.equal(await ask(`echo ${BASE_URL}`), `echo ${BASE_URL}`);
  }),
);
