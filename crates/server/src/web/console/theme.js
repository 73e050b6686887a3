// The theme that the user chose in this browser, for all pages; without a choice, they follow the system's theme. A classic script,
// because a module runs only after the page is painted.

"use strict";

(() => {
  const KEY = "plantstore-theme";
  const chosen = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      // Storage is disabled: the system's theme is used.
      return null;
    }
  };
  const isDark = () => {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    // The class that the documentation page knows.
    document.documentElement.classList.toggle("dark-mode", isDark());
  };

  apply(chosen());
  document.addEventListener("DOMContentLoaded", () => {
    const buttons = document.querySelectorAll(".theme-switch");
    const tell = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(isDark())));
    const change = () => {
      const theme = isDark() ? "light" : "dark";
      apply(theme);
      tell();
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // Storage is disabled: the theme is used until the page is closed.
      }
    };
    tell();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      apply();
      tell();
    });
    buttons.forEach((button) => button.addEventListener("click", change));
  });
})();
