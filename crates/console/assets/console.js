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

  // A wide graph opens at the selected step, or at the first one that failed.
  const centre = () => {
    for (const graph of document.querySelectorAll(".graph.scroll")) {
      const [at, box] = [graph.querySelector("a.on") ?? graph.querySelector("a.error"), graph.getBoundingClientRect()];
      const step = at?.getBoundingClientRect();
      if (step) graph.scrollLeft += step.left - box.left - (box.width - step.width) / 2;
    }
  };
  centre();

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
  // The time since an event, as the server writes it.
  const age = (ms) => {
    const [days, hours, minutes] = [ms / 864e5, ms / 36e5 % 24, ms / 6e4 % 60].map(Math.floor);
    const two = (a, unit, b, smaller) => b ? `${a} ${unit} ${b} ${smaller}` : `${a} ${unit}`;
    if (days) return two(days, "d", hours, "h");
    if (hours) return two(hours, "h", minutes, "min");
    const [unit, name] = ms < 1e3 ? [1, "ms"] : minutes ? [6e4, "min"] : [1e3, "s"];
    const tenths = Math.floor(Math.max(ms, 0) * 10 / unit) / 10;
    return `${tenths < 10 && ms >= 1e3 ? tenths : Math.floor(tenths)} ${name}`;
  };
  // The page has the time of the server: the browser only counts on from there.
  const [opened, readAt] = [performance.now(), Date.parse(document.querySelector("footer time")?.dateTime)];
  setInterval(() => {
    const now = readAt + performance.now() - opened;
    for (const element of document.querySelectorAll("main [data-since]")) {
      const text = `${age(now - Date.parse(element.dataset.since))} ago`;
      if (!document.hidden && element.textContent !== text) element.textContent = text;
    }
  }, 1000);
  const isUsed = () => document.hidden || isTyping() || document.getSelection()?.isCollapsed === false
    || document.querySelector("main details.menu[open], main input[name=ids]:checked") !== null;
  const wait = () => setTimeout(readAgain, 1000 * (Number(live()?.dataset.live) || 5));
  // What the pointer or the keyboard focus is at does not move, or a click would open something else: what is new is offered.
  // A pointer that has rested since another page was left aims at nothing.
  let hasPointed = false;
  addEventListener("pointermove", () => { hasPointed = true; }, { once: true });
  const aim = () => {
    const what = followed() ? "a, button, summary" : "a, button, summary, tr, li";
    return document.querySelector(`main :is(${what}):is(${hasPointed ? ":hover, " : ""}:focus)`);
  };
  const rows = (main) => [...main.querySelectorAll("tbody tr, li")];
  const address = (row) => row.querySelector("a")?.getAttribute("href") ?? row.textContent;
  const offer = (page, main, aimed) => {
    const known = new Set(rows(main).map(address));
    const fresh = rows(page).filter((row) => !known.has(address(row))).length;
    const texts = (main) => rows(main).map((row) => row.textContent).join();
    let button = main.querySelector(".news");
    if (!fresh && texts(page) === texts(main)) return button?.remove();
    if (!button) {
      button = document.createElement("button");
      button.className = "news go";
      main.append(button);
    }
    button.classList.toggle("up", aimed.getBoundingClientRect().top > innerHeight / 2);
    button.textContent = fresh ? `${fresh} new: show` : "changed: show";
    button.onclick = () => swap(page, main);
  };
  const swap = (page, target) => htmx.swap({ sourceElement: target, target, swap: "outerMorph", text: page.outerHTML });
  const refresh = async () => {
    if (isUsed()) return false;
    try {
      const response = await fetch(location.href, { headers: { accept: "text/html" } });
      const page = new DOMParser().parseFromString(response.ok ? await response.text() : "", "text/html").querySelector("main");
      if (!page || isUsed()) return false;
      localise(page);
      const target = document.querySelector("main");
      const aimed = aim();
      if (aimed) {
        offer(page, target, aimed);
        return false;
      }
      await swap(page, target);
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
