// Keeps pages up to date, and shows times in the viewer's zone. Pages work without it.
"use strict";

(() => {
  const EVERY = 2000; // milliseconds between two looks
  const SLOWEST = 10000; // while the dashboard does not answer
  const HOUR = 3600000;
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const today = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const older = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const ancient = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "always", style: "short" });

  function said(moment) {
    const away = moment - Date.now();
    const size = Math.abs(away);
    if (size < 60000) return relative.format(Math.round(away / 1000), "second");
    if (size < HOUR) return relative.format(Math.round(away / 60000), "minute");
    if (size < 12 * HOUR) return today.format(moment);
    return (size < 300 * 24 * HOUR ? older : ancient).format(moment);
  }

  function showTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(element.dateTime);
      if (isNaN(moment)) continue;
      const text = said(moment);
      if (element.textContent !== text) element.textContent = text;
      if (!element.dataset.exact) {
        element.dataset.exact = "yes";
        element.title = `${exact.format(moment)} (${element.dateTime})`;
      }
    }
  }

  // A part that somebody is busy with is left alone: what they type or have selected must not vanish.
  function busy(part) {
    const active = document.activeElement;
    if (active && active !== document.body && part.contains(active) && active.matches("input, textarea, select")) return true;
    if (part.querySelector("details.act[open]") || part.querySelector("input[name=chosen]:checked")) return true;
    const selected = document.getSelection();
    return Boolean(selected && !selected.isCollapsed && part.contains(selected.anchorNode));
  }

  function replace(part, fresh) {
    const opened = new Map();
    for (const details of part.querySelectorAll("details[data-key]")) opened.set(details.dataset.key, details.open);
    const active = document.activeElement;
    const focused = active && part.contains(active) && active.getAttribute("href");
    const across = part.scrollLeft;
    const inner = [...part.querySelectorAll(".scroll, .code")].map((each) => [each.scrollLeft, each.scrollTop]);
    part.replaceChildren(...fresh.childNodes);
    for (const details of part.querySelectorAll("details[data-key]")) {
      if (opened.has(details.dataset.key)) details.open = opened.get(details.dataset.key);
    }
    part.scrollLeft = across;
    [...part.querySelectorAll(".scroll, .code")].forEach((each, index) => {
      if (inner[index]) [each.scrollLeft, each.scrollTop] = inner[index];
    });
    if (focused) {
      const again = [...part.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused);
      if (again) again.focus({ preventScroll: true });
    }
    showTimes(part);
  }

  const known = new Map(); // the source of each part, as it came from the server
  let version = null;
  let wait = EVERY;

  async function look() {
    const offline = document.getElementById("offline");
    try {
      const headers = version ? { "If-None-Match": version } : {};
      const answer = await fetch(location.href.split("#")[0], { headers, cache: "no-store", redirect: "error" });
      if (answer.status === 401 || answer.status === 403 || answer.status === 404) return false;
      if (answer.status !== 304 && !answer.ok) throw new Error(String(answer.status));
      if (answer.status === 200) {
        version = answer.headers.get("ETag");
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-live]")) {
          const fresh = page.getElementById(part.id);
          if (!fresh || busy(part)) {
            if (fresh) version = null; // look at it again when they are done
            continue;
          }
          const source = fresh.innerHTML;
          if (known.get(part.id) !== source) {
            known.set(part.id, source);
            replace(part, fresh);
          }
        }
      }
      offline.hidden = true;
      wait = EVERY;
    } catch {
      offline.hidden = false;
      wait = Math.min(wait * 1.5, SLOWEST);
    }
    return true;
  }

  async function keepLooking() {
    if (document.hidden) {
      document.addEventListener("visibilitychange", keepLooking, { once: true });
      return;
    }
    if (await look()) setTimeout(keepLooking, wait);
  }

  document.addEventListener("keydown", (event) => {
    const search = document.querySelector(".search input");
    if (event.key === "/" && !event.target.matches("input, textarea, select")) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape") {
      for (const details of document.querySelectorAll("details.act[open]")) details.open = false;
    }
  });
  document.addEventListener("click", (event) => {
    for (const details of document.querySelectorAll("details.act[open]")) {
      if (!details.contains(event.target)) details.open = false;
    }
  });

  showTimes(document);
  setInterval(() => showTimes(document), 1000);
  if (document.querySelector("[data-live]")) setTimeout(keepLooking, EVERY);
})();
