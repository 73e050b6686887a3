// The theme that somebody chose in this browser; without a choice the system's holds, by style.css alone. A classic script,
// because a module runs only after the page is painted.

"use strict";

(() => {
  const KEY = "plantstore-theme";
  const chosen = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      // Storage is switched off: the system's theme, then.
      return null;
    }
  };
  const apply = (theme) => {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  };
  const isDark = () => {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
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
        // It holds for this page, then.
      }
    };
    tell();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
    buttons.forEach((button) => button.addEventListener("click", change));
  });
})();
