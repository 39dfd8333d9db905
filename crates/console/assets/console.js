// The script of the console. Every page works without it.
(() => {
  "use strict";
  const isTyping = () => /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");

  // "/" leads to the search.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping()) return;
    const search = document.querySelector(".find input");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  });

  // The current item of the navigation is in view on a narrow screen.
  document.querySelector("nav.main [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  // A page that asks for it with data-live reads itself again, unless somebody uses it.
  const live = () => document.querySelector("main [data-live]");
  const isUsed = () => document.hidden || isTyping() || !document.getSelection()?.isCollapsed
    || document.querySelector("main details.menu[open], main input[type=checkbox][name=ids]:checked");
  const readAgain = async () => {
    const place = live();
    if (!place) return;
    if (!isUsed() && window.htmx) {
      try {
        const response = await fetch(location.href, { headers: { accept: "text/html" } });
        const text = response.ok ? await response.text() : "";
        const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
        if (main && !isUsed()) {
          await htmx.swap({ target: document.querySelector("main"), swap: "outerMorph", text: main.outerHTML });
        }
      } catch { /* The next turn tries again. */ }
    }
    setTimeout(readAgain, 1000 * (Number(live()?.dataset.live) || 5));
  };
  if (live()) setTimeout(readAgain, 1000 * (Number(live().dataset.live) || 5));
})();
