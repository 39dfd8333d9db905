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
  const showCurrent = () =>
    document.querySelector("nav.main [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  showCurrent();
  addEventListener("resize", showCurrent);

  // Times are written in the zone of the reader, with UTC beside them in the title. The button at the foot leaves them in UTC.
  const two = (number) => String(number).padStart(2, "0");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const isUtc = /^(Etc\/)?(UTC|GMT|UCT|Zulu)$/.test(zone);
  const memory = { get: () => { try { return localStorage.getItem("zone"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("zone", value); } catch { /* The page works without it. */ } } };
  const showsUtc = () => isUtc || memory.get() === "UTC";
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const seconds = (at) => `${clock(at)}:${two(at.getSeconds())}`;
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  const short = (at, now) => {
    if (day(at) === day(now)) return seconds(at);
    const date = `${at.getDate()} ${months[at.getMonth()]}`;
    return at.getFullYear() === now.getFullYear() ? `${date} ${clock(at)}` : `${date} ${at.getFullYear()}`;
  };
  // A time below a chart has the form that it has in UTC.
  const like = (utc, at) => /:\d\d:/.test(utc) ? seconds(at)
    : /[a-z]/i.test(utc) ? `${at.getDate()} ${months[at.getMonth()]} ${clock(at)}` : clock(at);
  // The text and the title of the server are kept, so that UTC can be shown again.
  const write = (element, text, title) => {
    element.dataset.utc ??= element.textContent;
    element.textContent = text ?? element.dataset.utc;
    if (title === undefined) return;
    element.dataset.title ??= element.title;
    element.title = title ? `${title} ${zone}, ${element.dataset.title}` : element.dataset.title;
  };
  const localise = (root) => {
    const now = new Date(document.querySelector("footer time")?.dateTime ?? Date.now());
    const asUtc = showsUtc();
    for (const element of root.querySelectorAll("time[datetime]")) {
      const at = new Date(element.dateTime);
      if (!isNaN(at)) write(element, asUtc ? undefined : short(at, now), asUtc ? "" : `${day(at)} ${seconds(at)}`);
    }
    for (const element of root.querySelectorAll("[data-clock]")) {
      const at = new Date(element.dataset.clock);
      if (!isNaN(at)) write(element, asUtc ? undefined : like(element.dataset.utc ?? element.textContent, at));
    }
  };
  const foot = document.querySelector("[data-zone]");
  const sayZone = () => {
    const utc = document.querySelector("footer time")?.dataset.utc;
    foot.textContent = showsUtc() ? "times in UTC" : `times in ${zone}, read at ${utc} UTC`;
    if (isUtc) return;
    const button = document.createElement("button");
    button.className = "plain";
    button.textContent = showsUtc() ? `show ${zone}` : "show UTC";
    button.addEventListener("click", () => {
      memory.set(showsUtc() ? "local" : "UTC");
      localise(document);
      sayZone();
      foot.querySelector("button").focus();
    });
    foot.append(" ", button);
  };
  localise(document);
  if (foot) sayZone();

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
      localise(main);
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
