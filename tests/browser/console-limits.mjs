// Rejected requests and missing responses are reported, and the shown plants stay: a server with a low rate limit, and a
// network that loses requests.

import { TOKEN, main, openPage, withBrowser } from "./browser.mjs";
import { add, shown, signIn, toast } from "./garden.mjs";

main(() =>
  withBrowser(async (browser) => {
    const page = await openPage(browser);
    // The stream of events is the third request.
    page.tolerate(/status of 429/, /ERR_FAILED/);
    await page.goto("/");
    await signIn(page, TOKEN);
    await shown(page, "Rose").waitFor();
    await page.getByRole("button", { name: "Refresh" }).click();
    await toast(page, "This may be out of date. This user has sent too many requests, nothing was done: try again in").waitFor();
    await shown(page, "Rose").waitFor();

    // A form that is closed before its response: the failure is reported, and the next form is not affected.
    await page.route("**/plants", (route) => route.abort());
    const form = await add(page, { name: "Elm" });
    await form.getByRole("button", { name: "Adding…" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Add a plant" }).click();
    await form.getByLabel("Name").fill("Oak");
    await toast(page, "It is not known whether “Elm” was added. The server cannot be reached.").waitFor();
    await form.waitFor();
    page.check();
  }),
);
