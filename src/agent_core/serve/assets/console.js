"use strict";
// Times in the reader's zone, and the lines that follow a run. Without this every page can be read,
// and every form can be sent.
(() => {
  const language = document.documentElement.lang;
  const format = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });

  const localise = (root) => {
    for (const time of root.querySelectorAll("time[datetime]:not([data-is-local])")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      time.title = time.textContent;
      time.textContent = format.format(moment);
      time.dataset.isLocal = "";
    }
  };

  localise(document);
  new MutationObserver((changes) => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (node instanceof Element) localise(node.parentElement ?? node);
      }
    }
  }).observe(document.body, { childList: true, subtree: true });

  // The cost of today and of this week begins where the reader's day begins.
  const days = document.getElementById("days");
  if (days !== null && window.htmx !== undefined) {
    const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
    const address = `${days.dataset.from}?zone=${encodeURIComponent(zone)}`;
    window.htmx.ajax("GET", address, { target: "#days", swap: "outerHTML" });
  }

  // A reader who sees the end of the conversation goes on seeing it.
  const talk = document.getElementById("conversation");
  const end = document.getElementById("questions");
  if (talk !== null && end !== null) {
    const sees = () => end.getBoundingClientRect().top <= window.innerHeight;
    let follows = sees();
    window.addEventListener("scroll", () => { follows = sees(); }, { passive: true });
    const watch = new MutationObserver(() => {
      if (follows) end.scrollIntoView({ block: "nearest" });
    });
    for (const place of [talk, document.getElementById("now"), end]) {
      if (place !== null) watch.observe(place, { childList: true, subtree: true });
    }
  }

  const lost = document.getElementById("lost");
  for (const [name, isLost] of [["error", true], ["after:connection", false]]) {
    document.addEventListener(`htmx:sse:${name}`, () => { if (lost !== null) lost.hidden = !isLost; });
  }

  // A browser has six connections to a server: a page that nobody sees gives its stream back. The
  // extension does that when a page is hidden, but not for one that was hidden when it connected.
  document.addEventListener("htmx:sse:after:connection", () => {
    setTimeout(() => {
      if (document.hidden) document.dispatchEvent(new Event("visibilitychange"));
    });
  });

  // Nothing of a form is lost to a second press.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.isSent !== undefined) event.preventDefault();
    event.target.dataset.isSent = "";
  });
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-is-sent]")) delete form.dataset.isSent;
  });
})();
