// What is kept for this tab. Where the browser keeps nothing for this site, or has no room, the page works without.

export function keep(key, value) {
  try {
    sessionStorage.setItem(key, value);
  } catch {
    // It holds for this page, then.
  }
}

/// What was kept; `null` if nothing was.
export function recall(key) {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

export function forget(key) {
  try {
    sessionStorage.removeItem(key);
  } catch {
    // There is nothing to forget.
  }
}
