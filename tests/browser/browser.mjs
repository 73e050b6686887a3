// Shared by the scripts of this directory: Chromium, pages that report every error, and the channel to the test.
//
// tests/it/support/browser.rs runs a script with BASE_URL, TOKEN and OUTPUT in its environment. A script that throws has
// failed.

import { accessSync, constants, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

export const BASE_URL = process.env.BASE_URL;
export const TOKEN = process.env.TOKEN;
export const OUTPUT = process.env.OUTPUT;

/// Timeout for every expected event, on a machine that is busy with other tests.
export const TIMEOUT = 120_000;
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");

mkdirSync(OUTPUT, { recursive: true });

function find(program) {
  for (const directory of process.env.PATH.split(delimiter)) {
    const path = join(directory, program);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // Try the next directory.
    }
  }
  throw new Error(`${program} is missing: scripts/test installs it`);
}

/// Runs a test with a new browser, which is closed afterwards.
export async function withBrowser(test) {
  // The sandbox needs privileges that root in a container does not have. All pages are our own.
  // Without a GPU, software compositing takes a fifth less CPU time than an emulated GPU. The headless shell is Chromium without
  // the user interface of a browser, and takes a quarter less.
  const args = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"];
  const browser = await chromium.launch({ executablePath: find("chromium-headless-shell"), args, timeout: 2 * TIMEOUT });
  try {
    await test(browser);
  } catch (error) {
    await showPages(browser);
    throw error;
  } finally {
    await browser.close();
  }
}

/// Saves screenshots of all open pages, to show where a script has failed.
async function showPages(browser) {
  const pages = browser.contexts().flatMap((context) => context.pages());
  for (const [index, page] of pages.entries()) {
    await page.screenshot({ path: join(OUTPUT, `failed-${index + 1}.png`) }).catch(() => {});
  }
}

/// Opens a page in a new context and collects its errors: errors and warnings on the console, exceptions, dialogs, and
/// requests to other servers. `check` throws if there was any; `tolerate` takes patterns of expected errors.
export async function openPage(browser, options = {}) {
  // Animations delay every click, because it waits until the element rests.
  const defaults = { baseURL: BASE_URL, viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" };
  const context = await browser.newContext({ ...defaults, ...options });
  context.setDefaultTimeout(TIMEOUT);
  await context.addInitScript(keepToasts);
  if (!process.env.SCREENSHOTS) await context.addInitScript(removeBlur);
  const page = await context.newPage();
  const faults = [];
  const tolerated = [];
  const report = (fault) => {
    if (!tolerated.some((pattern) => pattern.test(fault))) faults.push(fault);
  };
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) report(`${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => report(`exception: ${error.stack ?? error}`));
  page.on("dialog", (dialog) => {
    report(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(BASE_URL).origin && protocol !== "data:") report(`foreign request: ${request.url()}`);
  });
  page.tolerate = (...patterns) => tolerated.push(...patterns);
  page.check = () => {
    if (faults.length > 0) throw new Error(`on the page:\n${faults.join("\n")}`);
  };
  return page;
}

/// Runs in every page: a toast stays for 10 minutes instead of 10 seconds, because a busy machine may need longer than that for
/// the next step of a script. Pages with a clock of Playwright are not affected.
function keepToasts() {
  const wait = window.setTimeout;
  window.setTimeout = (callback, delay, ...rest) => wait(callback, delay === 10_000 ? 600_000 : delay, ...rest);
}

/// Runs in every page: nothing behind a dialog is blurred. Without a GPU, that takes a third of the CPU time of a script.
function removeBlur() {
  const style = new CSSStyleSheet();
  style.replaceSync("*, *::backdrop { backdrop-filter: none !important }");
  document.adoptedStyleSheets = [style];
}

/// Throws if axe-core finds a violation on the page as it is now.
export async function checkAccessibility(page, state) {
  // Evaluated by the debugger, to which no Content-Security-Policy applies.
  if (!(await page.evaluate("typeof window.axe === 'object'"))) {
    await page.evaluate(await source(AXE));
  }
  const violations = await page.evaluate(async () => {
    // Elements have no contrast while they fade in. Endless animations are not finished.
    for (const animation of document.getAnimations()) {
      if (animation.effect.getComputedTiming().endTime !== Infinity) animation.finish();
    }
    const found = await window.axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map(({ id, help, nodes }) => {
      return `${id}: ${help}\n${nodes.map((node) => `  ${node.html}\n    ${node.failureSummary}`).join("\n")}`;
    });
  });
  if (violations.length > 0) throw new Error(`accessibility of ${state}:\n${violations.join("\n")}`);
}

async function source(path) {
  const { readFile } = await import("node:fs/promises");
  return readFile(path, "utf8");
}

/// Saves a screenshot in the output directory, for manual review, if SCREENSHOTS is set.
export async function picture(page, name, options = {}) {
  if (!process.env.SCREENSHOTS) return;
  await page.screenshot({ path: join(OUTPUT, `${name}.png`), animations: "disabled", ...options });
}

const responses = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/// Sends a command about the server to the test that runs this script, and waits for its result.
export async function ask(what) {
  process.stdout.write(`ask ${what}\n`);
  const { value, done } = await responses.next();
  if (done) throw new Error(`no response: ${what}`);
  return value;
}

/// Runs the script's body and exits explicitly, because an open standard input keeps the process running.
export function main(body) {
  body().then(
    () => process.exit(0),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}
