// A server that lets a user send one request in a while: the console says so, and keeps what it knows.

import { main, withBrowser } from "./browser.mjs";
import { shown, signedIn, toast } from "./garden.mjs";

main(() =>
  withBrowser(async (browser) => {
    const page = await signedIn(browser);
    page.tolerate(/status of 429/);
    await page.getByRole("button", { name: "Look again" }).click();
    await toast(page, "This may be out of date. This user has sent too many requests, nothing was done: try again in").waitFor();
    await shown(page, "Rose").waitFor();
    page.check();
  }),
);
