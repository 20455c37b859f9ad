// Lays what the server sends over what is shown, and leaves alone what has not changed: focus, selection, scroll
// positions, open details and what somebody has typed stay. It is htmx's swap style `live`.
"use strict";
(() => {
  const FIELDS = new Set(["INPUT", "SELECT", "TEXTAREA"]);

  /** What is in `from` becomes what is in `to`; gives the elements that are new. */
  function lay(from, to, fresh) {
    const named = new Map();
    for (const child of from.children) if (child.id) named.set(child.id, child);
    let at = from.firstChild;
    for (const next of [...to.childNodes]) {
      let same = null;
      if (next.id) same = named.get(next.id) || null;
      else if (at && !at.id && at.nodeName === next.nodeName) same = at;
      if (same && same.nodeName === next.nodeName) {
        if (same === at) at = at.nextSibling;
        else from.insertBefore(same, at);
        update(same, next, fresh);
      } else {
        from.insertBefore(next, at);
        if (next.nodeType === Node.ELEMENT_NODE) fresh.push(next);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      if (gone.nodeType === Node.ELEMENT_NODE) htmx.remove(gone);
      else gone.remove();
    }
    return fresh;
  }

  function update(from, to, fresh) {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep") || from.isEqualNode(to)) return;
    for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    for (const { name } of [...from.attributes]) {
      const own = name === "open" || name === "class"; // who opened it, did so; htmx marks what it loads
      if (!to.hasAttribute(name) && !own) from.removeAttribute(name);
    }
    if (!FIELDS.has(from.nodeName)) lay(from, to, fresh);
  }

  htmx.defineExtension("live", {
    isInlineSwap: (style) => style === "live",
    handleSwap(style, target, fragment) {
      if (style !== "live") return false;
      const found = fragment.querySelector(`#${CSS.escape(target.id)}`);
      // Another page than was asked for: somebody has to sign in again.
      if (!found) location.reload();
      else return lay(target, found, []);
      return [];
    },
  });

  // -- whether it is live ------------------------------------------------------------------------------------

  const say = (text, bad) => {
    const place = document.getElementById("stream");
    if (place.textContent !== text) place.textContent = text;
    place.classList.toggle("lost", bad);
  };
  const again = () => document.querySelectorAll("[hx-get][hx-trigger]").forEach((one) => htmx.trigger(one, "refresh"));
  const PATIENCE_MS = 60000;
  let source = null;
  let leaving = 0;
  let opened = false;
  let missed = false;

  document.addEventListener("htmx:sseOpen", (event) => {
    source = event.detail.source;
    say("Live", false);
    opened = true;
  });
  document.addEventListener("htmx:sseError", () => say("Not live: the dashboard does not answer, trying again", true));
  document.addEventListener("htmx:responseError", (event) => say(`Not live: status ${event.detail.xhr.status}`, true));
  document.addEventListener("htmx:sendError", () => say("Not live: the dashboard does not answer", true));
  document.addEventListener("htmx:afterOnLoad", (event) => opened && event.detail.xhr.status < 400 && say("Live", false));

  // Nobody looks: it is read when somebody does.
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!document.hidden) return;
    event.preventDefault();
    missed = true;
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(leaving);
    if (document.hidden) {
      // A browser has six connections for one host: a page that nobody looks at gives its own back.
      leaving = setTimeout(() => source?.close(), PATIENCE_MS);
    } else if (source?.readyState === EventSource.CLOSED) {
      source.onerror(new Event("error")); // the extension connects anew, and is told then what was missed
    } else if (missed) {
      missed = false;
      again();
    }
  });

  // -- times grow older --------------------------------------------------------------------------------------

  function ago(moment) {
    const seconds = Math.trunc((Date.now() - moment) / 1000);
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (Math.abs(seconds) >= size) {
        const count = Math.trunc(Math.abs(seconds) / size);
        return seconds >= 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
      }
    }
    return seconds >= 0 ? `${seconds} s ago` : `in ${-seconds} s`;
  }
  function grow() {
    if (document.hidden) return;
    document.querySelectorAll("time[datetime]").forEach((one) => {
      const said = ago(Date.parse(one.dateTime));
      if (one.textContent !== said) one.textContent = said;
    });
  }
  grow();
  setInterval(grow, 5000);
  document.addEventListener("htmx:afterSwap", grow);
})();
