// A question says what is otherwise: empty fields are not sent.
"use strict";
(() => {
  const form = document.querySelector("[data-changed-only]");
  if (!form) return;
  const empty = () => [...form.elements].filter((one) => one.nodeName === "INPUT" && one.name && one.value === "");
  form.addEventListener("submit", () => empty().forEach((one) => (one.disabled = true)));
  // Whoever comes back by the browser's own button finds them open again.
  addEventListener("pageshow", () => [...form.elements].forEach((one) => (one.disabled = false)));
})();
