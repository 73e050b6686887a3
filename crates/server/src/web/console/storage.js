// Storage for this tab. If the browser's storage is disabled or full, the page works without it.

export function store(key, value) {
  try {
    sessionStorage.setItem(key, value);
  } catch {
    // The value is used until the page is closed.
  }
}

/// Returns the stored value, or `null`.
export function load(key) {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

export function remove(key) {
  try {
    sessionStorage.removeItem(key);
  } catch {
    // Nothing is stored.
  }
}
