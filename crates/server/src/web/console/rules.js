// Validation of a plant by the rules of the server, so that errors are shown before a request.

const LARGEST = 2n ** 63n - 1n;
const SMALLEST = -(2n ** 63n);
const NAME_MAX = 1_000;
const TAG_MAX = 200;

/// Returns true for text that is an id.
export function isId(text) {
  return idError(text) === "";
}

function idError(id) {
  if (!/^(0|-?[1-9]\d*|-0)$/.test(id)) return "Write a whole number such as 42 or -7, without leading zeros.";
  const number = BigInt(id);
  return number < SMALLEST || number > LARGEST ? `Write a number from ${SMALLEST} to ${LARGEST}.` : "";
}

function textError(text, most) {
  // In Unicode characters, not in UTF-16 code units.
  const length = [...text].length;
  if (length > most) return `Use at most ${most.toLocaleString("en")} characters; these are ${length.toLocaleString("en")}.`;
  if (/\p{Cc}/u.test(text)) return "It holds an invisible control character: type it instead of pasting.";
  return /\p{Cs}/u.test(text) ? "It holds half of a character: type it instead of pasting." : "";
}

/// Returns the error of each field; "" for none. The server accepts a name of blanks, but it could not be seen.
export function fieldErrors({ id, name, tag }) {
  const nameError = name.trim() === "" ? "Give it a name." : textError(name, NAME_MAX);
  return { id: idError(id), name: nameError, tag: textError(tag ?? "", TAG_MAX) };
}

/// Returns the errors of the fields in the server's message about an invalid body, such as "Name is required; tag must …". Parts
/// that name no field are under `other`.
export function parseFieldErrors(message) {
  const errors = { id: "", name: "", tag: "", other: "" };
  for (const part of message.split("; ")) {
    const field = /^(id|name|tag)\b/i.exec(part)?.[1].toLowerCase() ?? "other";
    errors[field] = errors[field] ? `${errors[field]}; ${part}` : part;
  }
  return errors;
}
