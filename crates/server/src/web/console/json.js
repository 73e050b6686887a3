// Ids are 64-bit integers, and a number of JavaScript holds 53 bits: numbers are read and written as the text they are.

const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/// What a JSON text says, with every number as a string of its very digits.
export function parseExactly(text) {
  return JSON.parse(text.replace(STRING_OR_NUMBER, (found) => (found.startsWith('"') ? found : `"${found}"`)));
}

/// The body that creates a plant; the id's digits go as they are.
export function plantBody({ id, name, tag }) {
  const optional = tag === undefined ? "" : `,"tag":${JSON.stringify(tag)}`;
  return `{"id":${id},"name":${JSON.stringify(name)}${optional}}`;
}
