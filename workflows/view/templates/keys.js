// Keys, and the other occurrences of the name under the pointer or in focus. Every page works without this.
"use strict";
(() => {
  const same = (name, on) => {
    for (const element of document.querySelectorAll("[data-name]")) {
      element.classList.toggle("same", on && element.dataset.name === name);
    }
  };
  for (const [start, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(start, (event) => {
      const element = event.target.closest("[data-name]");
      if (element) same(element.dataset.name, true);
    });
    document.addEventListener(end, () => same("", false));
  }
  // Boxes of a list are ticked together.
  for (const ticks of document.querySelectorAll(".ticks")) {
    ticks.hidden = false;
    ticks.addEventListener("click", (event) => {
      const { value } = event.target;
      for (const box of value ? ticks.closest("fieldset").querySelectorAll("[type=checkbox]") : []) {
        box.checked = value === "invert" ? !box.checked : value === "all";
      }
    });
  }
  const step = (by) => {
    const items = [...document.querySelectorAll("[data-item]")];
    const here = items.indexOf(document.activeElement);
    const top = items.findIndex((item) => item.getBoundingClientRect().top > 0);
    const next = here < 0 ? Math.max(top, 0) : Math.min(Math.max(here + by, 0), items.length - 1);
    if (items[next]) {
      items[next].focus({ preventScroll: true });
      items[next].scrollIntoView({ block: "center" });
    }
  };
  const marks = document.getElementById("marks");
  const kept = "concord-marks";
  marks.checked = localStorage.getItem(kept) === "1";
  marks.addEventListener("change", () => localStorage.setItem(kept, marks.checked ? "1" : ""));
  const follow = (relation) => document.querySelector(`a[rel~="${relation}"]`)?.click();
  const keys = {
    "/": () => document.getElementById("find").focus(),
    j: () => step(1),
    k: () => step(-1),
    m: () => marks.click(),
    n: () => follow("next"),
    p: () => follow("prev"),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape" && typing) typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
})();
