// The rules of a plant, as the server has them: said while somebody types, and not only after a request.

const LARGEST = 2n ** 63n - 1n;
const SMALLEST = -(2n ** 63n);
const NAME_MAX = 1_000;
const TAG_MAX = 200;

function idFault(id) {
  if (!/^(0|-?[1-9]\d*|-0)$/.test(id)) return "Write a whole number such as 42 or -7, without leading zeros.";
  const number = BigInt(id);
  return number < SMALLEST || number > LARGEST ? `Write a number from ${SMALLEST} to ${LARGEST}.` : "";
}

function textFault(text, least, most) {
  // By characters, not by the halves that JavaScript counts.
  const length = [...text].length;
  if (length < least) return "Give it a name.";
  if (length > most) return `Use at most ${most.toLocaleString("en")} characters; these are ${length.toLocaleString("en")}.`;
  if (/\p{Cc}/u.test(text)) return "It holds an invisible control character: type it instead of pasting.";
  return /\p{Cs}/u.test(text) ? "It holds half of a character: type it instead of pasting." : "";
}

/// What is wrong with each field; "" where nothing is.
export function faultsOf({ id, name, tag }) {
  return { id: idFault(id), name: textFault(name, 1, NAME_MAX), tag: textFault(tag ?? "", 0, TAG_MAX) };
}

/// The same out of the server's words for a refused body, such as "Name is required; tag must …": whatever names no field
/// is under `other`.
export function faultsIn(message) {
  const faults = { id: "", name: "", tag: "", other: "" };
  for (const part of message.split("; ")) {
    const field = /^(id|name|tag)\b/i.exec(part)?.[1].toLowerCase() ?? "other";
    faults[field] = faults[field] ? `${faults[field]}; ${part}` : part;
  }
  return faults;
}
