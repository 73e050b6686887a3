// The pictures of the README: the console, and two terminals whose text was recorded (see scripts/pictures).

import { readFileSync } from "node:fs";
import { TOKEN, main, openPage, picture, withBrowser } from "./browser.mjs";
import { plant, shown, signIn } from "./garden.mjs";

const GARDEN = JSON.parse(readFileSync(new URL("garden.json", import.meta.url)));
const COLOURS = ["#3b4252", "#f0846a", "#93d6ab", "#ebcb8b", "#88b4d8", "#c9a3d4", "#8fcfc9", "#e9f0e8"];

/// Parses the lines of a terminal into pieces of text, with the colour and weight of their escape sequences.
function rendered(recorded) {
  return recorded.split("\n").map((line) => {
    let state = {};
    return line.split(/\x1b\[([\d;]*)m/).flatMap((piece, index) => {
      if (index % 2 === 0) return piece ? [{ text: piece, ...state }] : [];
      for (const code of piece.split(";").map(Number)) {
        if (code === 0) state = {};
        else if (code === 1) state = { ...state, bold: true };
        else if (code === 39) state = { ...state, colour: undefined };
        else if (code >= 30 && code <= 37) state = { ...state, colour: COLOURS[code - 30] };
      }
      return [];
    });
  });
}

async function terminals(browser, recorded) {
  const page = await openPage(browser, { viewport: { width: 1100, height: 800 }, deviceScaleFactor: 1.5 });
  await page.setContent("<main></main>");
  await page.evaluate((screens) => {
    document.body.style.cssText = "margin:0;background:#121a16";
    document.querySelector("main").style.cssText = "width:max-content";
    for (const lines of screens) {
      const screen = document.createElement("pre");
      screen.style.cssText = "margin:0;padding:20px 26px;border-bottom:2px solid #2b3831;color:#dfe8de;font:15px/1.5 'DejaVu Sans Mono',monospace";
      for (const line of lines) {
        for (const { text, colour, bold } of line) {
          const piece = document.createElement("span");
          piece.textContent = text;
          piece.style.color = colour ?? "";
          piece.style.fontWeight = bold ? "bold" : "";
          screen.append(piece);
        }
        screen.append("\n");
      }
      document.querySelector("main").append(screen);
    }
  }, recorded.map(rendered));
  const { width, height } = await page.locator("main").boundingBox();
  await picture(page, "terminal", { clip: { x: 0, y: 0, width, height: height - 2 } });
}

async function garden(browser, name, colorScheme) {
  const page = await openPage(browser, { viewport: { width: 1200, height: 720 }, deviceScaleFactor: 1.5, colorScheme });
  await page.goto("/");
  await signIn(page, TOKEN);
  await shown(page, GARDEN[0][0]).waitFor();
  // Moves the pointer away from the cards, so that none is highlighted.
  await page.mouse.move(600, 5);
  await page.evaluate("document.fonts.ready");
  await picture(page, name);
}

main(() =>
  withBrowser(async (browser) => {
    for (const [index, [name, tag]] of GARDEN.entries()) await plant(index + 1, name, tag);
    await garden(browser, "console", "light");
    await garden(browser, "console-dark", "dark");
    await terminals(browser, process.env.RECORDED.split(" ").map((file) => readFileSync(file, "utf8").trimEnd()));
  }),
);
