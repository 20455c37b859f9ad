// Which theme: the system's, light or dark. It runs before anything is drawn, so that nothing flashes in another one.
"use strict";
(() => {
  const THEMES = ["system", "light", "dark"];
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem("tidegate-theme") || "system";
    } catch {
      return "system"; // storage may be forbidden
    }
  }

  function show(theme) {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = `Theme: ${theme}`;
      button.hidden = false;
    }
    document.dispatchEvent(new CustomEvent("tidegate:theme"));
  }

  show(kept());
  document.addEventListener("DOMContentLoaded", () => {
    show(kept());
    document.getElementById("theme").addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(kept()) + 1) % THEMES.length];
      try {
        localStorage.setItem("tidegate-theme", next);
      } catch {
        // It holds for this page alone then.
      }
      show(next);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(kept()));
})();
