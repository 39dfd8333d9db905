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
  const readAgain = async () => {
    if (!live()) return;
    if (!isUsed()) {
      try {
        const response = await fetch(location.href, { headers: { accept: "text/html" } });
        const page = new DOMParser().parseFromString(response.ok ? await response.text() : "", "text/html");
        const main = page.querySelector("main");
        if (main && !isUsed()) {
          const target = document.querySelector("main");
          await htmx.swap({ sourceElement: target, target, swap: "outerMorph", text: main.outerHTML });
        }
      } catch {
        // The service may be restarting: the next turn tries again.
      }
    }
    wait();
  };
  if (live()) wait();
})();
