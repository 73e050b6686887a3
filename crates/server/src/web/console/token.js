// Parsing and validation of pasted access tokens.

/// `pst_`, 32 random characters and 6 of their checksum, as the service issues them.
const ISSUED = /^pst_[0-9A-Za-z]{38}$/;
const LENGTH = 42;
const CHECKSUM_LENGTH = 6;
const BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Text in front of a token: a shell's assignment, the header's name, the scheme.
const LEADING = /^(?:(?:export|set)\s+|(?:\$env:)?[A-Z_]\w*\s*=|Authorization\s*:|Bearer\s+)/i;
const SURROUNDING = /^[\s\u200b"'`“”‘’]+|[\s\u200b"'`“”‘’;]+$/g;

/// Returns the token in a pasted text such as `export TOKEN="pst_…"` or `Authorization: Bearer pst_…`.
export function tokenIn(text) {
  const token = text.replace(SURROUNDING, "").replace(LEADING, "");
  return token === text ? token : tokenIn(token);
}

/// Returns a sentence about the mistake in a token, or "" if only the server can judge it.
export function tokenError(token) {
  if (token === "") return "Paste a token first.";
  if (!/^[\x21-\x7e]+$/.test(token)) return "A token is one word of letters, digits and signs: this has something else in it.";
  // Tokens of an OpenID Connect issuer look different.
  if (!token.startsWith("pst_")) return "";
  const { length } = token;
  if (length < LENGTH) return `This token is incomplete: it has ${length} of ${LENGTH} characters. Copy it again.`;
  if (length > LENGTH) return `This token is too long: it has ${length} characters instead of ${LENGTH}. Copy it again.`;
  const isIntact = ISSUED.test(token) && token.endsWith(checksumOf(token.slice(0, -CHECKSUM_LENGTH)));
  return isIntact ? "" : "This token is mistyped: its checksum does not match. Copy it again.";
}

/// Returns the CRC-32 (IEEE) of ASCII text as base62 digits.
function checksumOf(text) {
  let crc = 0xffffffff;
  for (const character of text) {
    crc ^= character.charCodeAt(0);
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  }
  let rest = (crc ^ 0xffffffff) >>> 0;
  let digits = "";
  while (digits.length < CHECKSUM_LENGTH) {
    digits = BASE62[rest % 62] + digits;
    rest = Math.floor(rest / 62);
  }
  return digits;
}
