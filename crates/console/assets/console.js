// The script of the console. Every page works without it: it only saves reloads and keystrokes.
(() => {
  "use strict";
  const isTyping = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");

  // "/" leads to the search.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping()) return;
    const search = document.querySelector(".find input");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  });

  // On a narrow screen the current item of the navigation is in view.
  document.querySelector("nav.main [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // A page with data-live reads itself again, and waits while somebody uses it or it is hidden.
  const live = () => document.querySelector("main [data-live]");
  const isUsed = () => document.hidden || isTyping() || document.getSelection()?.isCollapsed === false
    || document.querySelector("main details.menu[open], main input[name=ids]:checked") !== null;
  const wait = () => setTimeout(readAgain, 1000 * (Number(live()?.dataset.live) || 5));
  const refresh = async () => {
    if (isUsed()) return false;
    try {
      const response = await fetch(location.href, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(response.ok ? await response.text() : "", "text/html");
      const main = page.querySelector("main");
      if (!main || isUsed()) return false;
      const target = document.querySelector("main");
      await htmx.swap({ sourceElement: target, target, swap: "outerMorph", text: main.outerHTML });
      return true;
    } catch {
      return false; // The service may be restarting: the next turn tries again.
    }
  };
  const readAgain = async () => {
    if (!live()) return;
    await refresh();
    wait();
  };
  if (live()) wait();

  // A page with data-events follows the changes of its task while it is in view, and reads itself again after each.
  const followed = () => document.querySelector("main [data-events]");
  let reading, changed;
  const soon = (wait = 400) => {
    changed ??= setTimeout(async () => {
      changed = undefined;
      if (!document.hidden && !await refresh() && followed()) soon(3000);
    }, wait);
  };
  const follow = async () => {
    const place = followed();
    if (!place || reading || document.hidden) return;
    reading = new AbortController();
    try {
      const response = await fetch(place.dataset.events, { signal: reading.signal });
      const events = response.status === 200 ? response.body.getReader() : undefined;
      const text = new TextDecoder();
      for (let part = await events?.read(); part && !part.done; part = await events.read()) {
        if (text.decode(part.value, { stream: true }).includes("id:")) soon();
      }
    } catch { /* The page was hidden, or the connection broke. */ }
    reading = undefined;
    if (!document.hidden) setTimeout(follow, 3000);
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) reading?.abort();
    else if (followed()) { soon(); follow(); }
  });
  follow();
})();
