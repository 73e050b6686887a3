// Formatting of numbers and names in messages.

/// Maximum number of characters of a name in a message.
const NAME_SHOWN = 60;

/// Returns `1,234 plants`, or `1 plant`.
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/// Returns the quoted name of a plant, shortened if it is long.
export function called({ name }) {
  return name.length > NAME_SHOWN ? `“${[...name].slice(0, NAME_SHOWN).join("")}…”` : `“${name}”`;
}

/// Returns `a`, `a and b` or `a, b and c`.
export function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/// Returns the time until a moment, such as `5 seconds`.
export function timeUntil(moment) {
  return count(Math.max(1, Math.round((moment - Date.now()) / 1_000)), "second");
}
