// The scopes of tokens and the roles of shares, in words.

/// All scopes. The usual ones are preselected for a new token.
export const SCOPES = [
  { name: "plants:read", words: "See plants", isUsual: true },
  { name: "plants:write", words: "Add and edit plants", isUsual: true },
  { name: "plants:delete", words: "Delete plants", isUsual: true },
  { name: "tokens:manage", words: "Manage tokens", isUsual: false },
  { name: "shares:manage", words: "Manage sharing", isUsual: false },
];

export const ROLES = { reader: "can see your plants", editor: "can see, add, edit and delete your plants" };
export const RECEIVED_ROLES = { reader: "You can see these plants", editor: "You can see, add, edit and delete these plants" };

const DATE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium" });
const TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
/// Times within this many milliseconds are shown to the minute.
const SOON = 2 * 86_400_000;

/// Returns the words for a scope; the scope itself if it is not known here.
export function scopeWords(scope) {
  return SCOPES.find(({ name }) => name === scope)?.words ?? scope;
}

/// Returns the date of a time, with the time of day if it is near.
export function dateOf(time) {
  const isNear = Math.abs(new Date(time) - Date.now()) < SOON;
  return (isNear ? TIME : DATE).format(new Date(time));
}

/// Returns the day of a time that is recorded by day.
export function dayOf(time) {
  return DATE.format(new Date(time));
}
