// JSON with exact integers. Ids have 64 bits, and numbers of JavaScript have 53, so numbers are read and written as text.

const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/// Parses JSON, with every number as a string of its digits.
export function parseExactly(text) {
  return JSON.parse(text.replace(STRING_OR_NUMBER, (found) => (found.startsWith('"') ? found : `"${found}"`)));
}

/// Returns the body of a request that creates or replaces a plant.
export function plantBody({ id, name, tag }) {
  const optional = tag === undefined ? "" : `,"tag":${JSON.stringify(tag)}`;
  return `{"id":${id},"name":${JSON.stringify(name)}${optional}}`;
}
