// Keys and selections for correcting: they fill in and send the form that the page has anyway.
"use strict";
(() => {
  const form = document.getElementById("correcting");
  if (!form) return;
  const text = document.querySelector("article.raw");
  const fields = form.elements;
  const aside = ".no, .l, .tree";
  const points = (string) => [...string].length;
  let target = null;

  // The text nodes of the raw text in an element: labels and numbers of sentences are none of it.
  const raw = function* (element) {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) if (!walker.currentNode.parentElement.closest(aside)) yield walker.currentNode;
  };
  const sentenceOf = (node) => (node.nodeType === Node.TEXT_NODE ? node.parentElement : node).closest(".s");
  const offset = (sentence, node, within) => {
    const range = document.createRange();
    range.setStart(sentence, 0);
    range.setEnd(node, within);
    let count = 0;
    for (const piece of raw(sentence)) {
      if (piece === range.endContainer) return count + points(piece.data.slice(0, range.endOffset));
      if (range.comparePoint(piece, 0) > 0) break;
      count += points(piece.data);
    }
    return count;
  };

  const show = (words, label) => {
    const bold = document.createElement("b");
    bold.textContent = words;
    document.getElementById("chosen").replaceChildren(bold, ` ${label || "no entity"}`);
    for (const button of form.querySelectorAll("button")) button.disabled = button.name === "bounds" && !label;
  };
  // The page that comes back has the same words chosen, with the links to equal words.
  const comeBack = (at) => {
    const back = new URL(fields.back.value, location.href);
    if (at) back.searchParams.set("at", at);
    else back.searchParams.delete("at");
    fields.back.value = back.pathname + back.search;
  };
  const chooseElement = (element) => {
    const [start, end] = element.dataset.at.split("-");
    Object.assign(fields.start, { value: start });
    Object.assign(fields.end, { value: end });
    for (const name of ["sentence", "from", "to"]) fields[name].value = "";
    comeBack(element.dataset.at);
    target = { label: element.dataset.label, words: element.dataset.name };
    show(target.words, target.label);
  };
  const chooseSelection = () => {
    const selection = document.getSelection();
    if (selection.isCollapsed || !selection.rangeCount) return;
    const range = selection.getRangeAt(0);
    const sentence = sentenceOf(range.startContainer);
    if (!sentence || !text.contains(sentence)) return;
    const last = sentenceOf(range.endContainer);
    fields.sentence.value = sentence.dataset.start;
    fields.from.value = offset(sentence, range.startContainer, range.startOffset);
    // What goes on into another sentence ends with this one.
    fields.to.value = last === sentence ? offset(sentence, range.endContainer, range.endOffset) : 1e9;
    comeBack("");
    target = { label: "", words: selection.toString() };
    show(target.words, "");
  };
  document.addEventListener("selectionchange", chooseSelection);
  text.addEventListener("focusin", (event) => {
    const element = event.target.closest("[data-at]");
    if (element) chooseElement(element);
    if (!document.getSelection().isCollapsed) document.getSelection().removeAllRanges();
    cursor = null;
  });
  // No selection begins in a link, which is dragged, or opens its menu at a long touch: while it is pressed it is none.
  text.addEventListener("pointerdown", (event) => {
    cursor = null;
    const link = event.target.closest("a[data-at]");
    if (!link?.href || event.button) return;
    const href = link.getAttribute("href");
    link.removeAttribute("href");
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => link.setAttribute("href", href), { once: true });
  });
  text.addEventListener("click", (event) => {
    if (event.detail && !document.getSelection().isCollapsed) event.preventDefault();
  });

  // The keyboard selects words: a cursor that moves by word, and grows with Shift.
  let cursor = null;
  const words = () =>
    [...text.querySelectorAll(".s")].flatMap((sentence) =>
      [...raw(sentence)].flatMap((node) =>
        [...node.data.matchAll(/[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]/gu)].map((found) => ({
          node,
          sentence,
          start: found.index,
          end: found.index + found[0].length,
        })),
      ),
    );
  // From a name with Shift on, all of its words are selected.
  const startWords = (all, extend) => {
    const element = document.activeElement.closest("[data-at], .s") ?? document.querySelector(".s:target");
    const isHere = (word) => (element ? element.contains(word.node) : word.node.parentElement.getBoundingClientRect().top > 0);
    const from = Math.max(0, all.findIndex(isHere));
    return { from, to: extend && element?.dataset.at ? Math.max(from, all.findLastIndex(isHere)) : from };
  };
  const move = (by, extend) => {
    const all = words();
    if (!all.length) return;
    const selection = document.getSelection();
    if (!cursor && extend && !selection.isCollapsed) {
      selection.modify("extend", by > 0 ? "forward" : "backward", "word");
      return;
    }
    const step = cursor || (extend && document.activeElement.closest("[data-at]")) ? by : 0;
    cursor ??= startWords(all, extend);
    cursor.to = Math.min(Math.max(cursor.to + step, 0), all.length - 1);
    if (!extend) cursor.from = cursor.to;
    if (all[cursor.to].sentence !== all[cursor.from].sentence) cursor.to -= by;
    const first = all[Math.min(cursor.from, cursor.to)];
    const last = all[Math.max(cursor.from, cursor.to)];
    selection.setBaseAndExtent(first.node, first.start, last.node, last.end);
    first.node.parentElement.scrollIntoView({ block: "nearest" });
  };

  const send = (name, value) => {
    const button = [...form.querySelectorAll("button")].find((one) => one.name === name && (!value || one.value === value));
    if (button && !button.disabled) form.requestSubmit(button);
  };
  const everywhere = (id) => {
    const link = document.getElementById(id);
    if (link && (!target || form.dataset.chosen === `${fields.start.value}-${fields.end.value}`)) link.click();
    else if (target?.words) {
      const query = new URLSearchParams({ text: target.words, label: target.label || form.dataset.first || "" });
      if (id !== "everywhere") query.set("id", decodeURIComponent(fields.id.value));
      location.assign(`everywhere?${query}`);
    }
  };
  const keys = {
    a: () => target?.label && send("label", target.label),
    h: () => send("bounds", "start+"),
    H: () => send("bounds", "start-"),
    l: () => send("bounds", "end+"),
    L: () => send("bounds", "end-"),
    A: () => document.getElementById("accepting")?.requestSubmit(),
    x: () => send("drop"),
    u: () => document.getElementById("undoing")?.requestSubmit(),
    Backspace: () => document.getElementById("undoing")?.requestSubmit(),
    " ": () => document.getElementById("skip")?.click(),
    e: () => everywhere("everywhere-here"),
    E: () => everywhere("everywhere"),
    ArrowRight: (event) => move(1, event.shiftKey),
    ArrowLeft: (event) => move(-1, event.shiftKey),
  };
  // A key that comes before the next page is there would correct what that page no longer shows.
  let isSent = false;
  addEventListener("pageshow", () => { isSent = false; });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const number = /^[1-9]$/.test(event.key) && form.querySelector(`[data-number="${event.key}"]`);
    if (!number && !(event.key in keys)) return;
    if (event.key === " " && (event.target.closest("button, a") || !document.getElementById("skip"))) return;
    event.preventDefault();
    // A key that is held down moves the cursor on, and writes once.
    if (isSent || (event.repeat && !event.key.startsWith("Arrow"))) return;
    if (number) send("label", number.value);
    else keys[event.key](event);
  });

  // After a correction the page comes back where it was, with the same words in focus.
  const place = "concord-place";
  document.addEventListener("submit", (event) => {
    isSent = true;
    const focused = document.activeElement.closest("[data-at]");
    const at = focused ? Number(focused.dataset.at.split("-")[0]) : -1;
    sessionStorage.setItem(place, JSON.stringify([event.target.elements.back?.value, scrollY, at]));
  });
  const element = text.querySelector(`[data-at="${CSS.escape(form.dataset.chosen)}"]`);
  if (element) chooseElement(element);
  const [where, top, at] = JSON.parse(sessionStorage.getItem(place) ?? "[]");
  sessionStorage.removeItem(place);
  if (where === location.pathname + location.search) {
    const next = element ?? [...text.querySelectorAll("[data-at]")].find((one) => Number(one.dataset.at.split("-")[0]) >= at);
    if (at >= 0) next?.focus({ preventScroll: true });
    scrollTo({ top, behavior: "instant" });
  }

  const moves = document.getElementById("moves");
  if (moves && "ask" in moves.dataset) {
    fetch(moves.dataset.href)
      .then((answer) => answer.text())
      .then((html) => {
        // A template holds the page without applying its stylesheet.
        const template = document.createElement("template");
        template.innerHTML = html;
        const found = template.content.getElementById("moved");
        const back = found?.querySelector("[name=back]");
        if (back) back.value = location.pathname + location.search;
        if (found) moves.replaceChildren(...found.childNodes);
      })
      .catch(() => {});
  }
})();
