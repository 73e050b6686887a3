// Access to the elements of the page.

export const byId = (id) => document.getElementById(id);

/// Shows a message in an element; "" hides the element.
export function showMessage(element, message) {
  element.textContent = message;
  element.hidden = message === "";
}
