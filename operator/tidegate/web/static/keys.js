// Keys: pages, rows and the filter without a mouse. Single keys can be switched off (WCAG 2.1.4).
"use strict";
(() => {
  const FIELDS = "input, select, textarea, [contenteditable]";
  const dialog = document.getElementById("keys");
  const open = document.getElementById("keys-open");
  const box = document.getElementById("keys-on");
  let going = 0;

  try {
    box.checked = localStorage.getItem("tidegate-keys") !== "off";
  } catch {
    // They are on for this page then.
  }
  box.addEventListener("change", () => {
    try {
      localStorage.setItem("tidegate-keys", box.checked ? "on" : "off");
    } catch {
      // As above.
    }
  });
  open.hidden = false;
  open.addEventListener("click", () => dialog.showModal());

  function row(step) {
    const links = [...document.querySelectorAll("[data-rows] tbody th a")];
    if (!links.length) return;
    const here = links.indexOf(document.activeElement);
    const next = here < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(here + step, 0), links.length - 1);
    links[next].focus();
  }

  const follow = (selector) => document.querySelector(selector)?.click();
  const DOES = {
    "/": () => (document.querySelector("main [data-filter]") ?? document.querySelector("[data-filter]"))?.focus(),
    j: () => row(1),
    k: () => row(-1),
    "[": () => follow("a[rel=prev]"),
    "]": () => follow("a[rel=next]"),
    t: () => document.getElementById("theme").click(),
    "?": () => dialog.showModal(),
    g: () => {
      going = Date.now();
    },
  };

  document.addEventListener("keydown", (event) => {
    if (!box.checked || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (dialog.open || event.target.closest?.(FIELDS)) return;
    const page = Date.now() - going < 1500 && document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    going = 0;
    if (page) page.click();
    else if (Object.hasOwn(DOES, event.key)) DOES[event.key]();
    else return;
    event.preventDefault();
  });
})();
