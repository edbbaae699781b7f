// Keys and selections for correcting: they fill in and send the forms that the page has anyway.
"use strict";
(() => {
  const main = document.getElementById("main");
  const isQueue = document.querySelector(".queue") !== null;
  const aside = ".no, .l, .tree";
  const points = (string) => [...string].length;
  let form = null;
  let text = null;
  let fields = null;
  let target = null;
  let cursor = null;
  // A key that comes before the next page is there would correct what that page no longer shows.
  let isSent = false;

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

  const show = () => {
    const bold = document.createElement("b");
    bold.textContent = target.words;
    document.getElementById("chosen").replaceChildren(bold, ` ${target.label || "no entity"}`);
    for (const button of form.querySelectorAll("button")) button.disabled = button.name === "bounds" && !target.label;
    form.dataset.chosen ||= "words";
    document.getElementById("every").value = target.words;
    const types = document.getElementById("every-label");
    types.value = target.label || types.options[0].value;
  };
  // The page that comes back has the same words chosen.
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
    show();
  };
  const chooseSelection = () => {
    const selection = document.getSelection();
    if (selection.isCollapsed || !selection.rangeCount) return;
    const range = selection.getRangeAt(0);
    const sentence = sentenceOf(range.startContainer);
    if (!sentence || !text?.contains(sentence)) return;
    const last = sentenceOf(range.endContainer);
    fields.sentence.value = sentence.dataset.start;
    fields.from.value = offset(sentence, range.startContainer, range.startOffset);
    // What goes on into another sentence ends with this one.
    fields.to.value = last === sentence ? offset(sentence, range.endContainer, range.endOffset) : 1e9;
    comeBack("");
    target = { label: "", words: selection.toString() };
    show();
  };
  document.addEventListener("selectionchange", chooseSelection);

  // The keyboard selects words: a cursor that moves by word, and grows with Shift.
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

  const press = (button) => button && !button.disabled && button.form.requestSubmit(button);
  const send = (name, value) =>
    press([...form.querySelectorAll("button")].find((one) => one.name === name && (!value || one.value === value)));
  const submit = (id) => document.getElementById(id)?.requestSubmit();
  const everywhere = (key) => target?.words && press(document.querySelector(`#everywhere [aria-keyshortcuts="${key}"]`));
  const keys = {
    a: () => target?.label && send("label", target.label),
    h: () => send("bounds", "start+"),
    H: () => send("bounds", "start-"),
    l: () => send("bounds", "end+"),
    L: () => send("bounds", "end-"),
    A: () => submit("accepting"),
    c: () => document.getElementById("comment")?.focus(),
    f: () => submit("flagging"),
    t: () => fields.other.focus(),
    x: () => send("drop"),
    u: () => submit("undoing"),
    Backspace: () => submit("undoing"),
    " ": () => document.getElementById("skip")?.click(),
    e: () => everywhere("e"),
    E: () => everywhere("E"),
    ArrowRight: (event) => move(1, event.shiftKey),
    ArrowLeft: (event) => move(-1, event.shiftKey),
  };
  // The second nine types have the same keys with Shift, which is another character on each keyboard.
  const typeButton = ({ code, shiftKey }) => {
    const number = /^(?:Digit|Numpad)([1-9])$/.exec(code)?.[1];
    const find = (one) => form.querySelector(`[data-number="${one}"]`);
    return number && ((shiftKey && find(Number(number) + 9)) || find(number));
  };
  document.addEventListener("keydown", (event) => {
    if (!form || event.target.closest("input:not([type=checkbox]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const type = typeButton(event);
    if (!type && !(event.key in keys)) return;
    if (event.key === " " && (event.target.closest("button, input, a:not([data-at])") || !document.getElementById("skip"))) return;
    event.preventDefault();
    // A key that is held down moves the cursor on, and writes once.
    if (isSent || (event.repeat && !event.key.startsWith("Arrow"))) return;
    if (type) press(type);
    else keys[event.key](event);
  });

  const setUp = () => {
    form = document.getElementById("correcting");
    text = document.querySelector("article.raw");
    target = cursor = null;
    if (!form) return;
    fields = form.elements;
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
      const link = isQueue && event.target.closest("a[data-at]");
      const isDragged = event.detail && !document.getSelection().isCollapsed;
      if (link && !isDragged) link.focus();
      if (link || isDragged) event.preventDefault();
    });
    const element = text.querySelector(`[data-at="${CSS.escape(form.dataset.chosen)}"]`);
    if (element) chooseElement(element);
    if (isQueue) {
      const question = document.getElementById("asked");
      (element ?? question).focus({ preventScroll: true });
      // A sheet at the bottom leaves less room.
      const isSheet = getComputedStyle(document.getElementById("correct")).position === "fixed";
      (isSheet ? question : document.body).scrollIntoView({ behavior: "instant" });
    }
    return element;
  };

  // In the queue, forms are sent and links are followed without loading a page. The next card is fetched ahead and shown
  // while what was said about this one is sent, one step after the other.
  let ahead = null;
  let looking = null;
  let sending = Promise.resolve();
  const load = async (address, options) => {
    const answer = await fetch(address, options);
    // A template holds the page without applying its stylesheet.
    const template = document.createElement("template");
    const words = await answer.text();
    template.innerHTML = words;
    const shown = template.content.getElementById("main");
    // A proxy that asks who it is, or a server that was started again and has another token.
    if (!shown) throw new Error(answer.ok ? "Something else than this server answers" : words.slice(0, 200).replace(/[.\s]+$/, ""));
    const isCard = answer.ok && shown.querySelector("#sentences") !== null;
    return { url: answer.ok ? answer.url : location.href, isDone: answer.ok, isCard, main: shown };
  };
  const lookAhead = () => {
    const next = document.getElementById("skip")?.href;
    // An earlier answer that comes later does not have what was written since.
    const own = (looking = {});
    ahead = null;
    const keep = (page) => {
      if (page.isCard && own === looking) ahead = { next, page };
    };
    // Without a rank the address leads to what is open then.
    if (next?.includes("rank=")) load(next).then(keep, () => {});
  };
  const turnTo = (page) => {
    history.replaceState(null, "", page.url);
    main.replaceChildren(...page.main.childNodes);
    setUp();
    lookAhead();
  };
  // Shows what is fetched ahead at once, else the answer when it is there.
  const turn = async (next, answer) => {
    const isAhead = ahead?.next === next;
    isSent = !isAhead;
    if (isAhead) turnTo(ahead.page);
    try {
      const page = await (answer ?? (isAhead ? null : load(next)));
      isSent = page?.isDone && !page.isCard;
      // A new generation has been published, and the page that selects its sentences is loaded again until it has.
      if (isSent) location.replace(page.url);
      else if (page && (!isAhead || !page.isDone)) turnTo(page);
      else if (page?.url === location.href) {
        for (const id of ["progress", "undo", "sentences"]) {
          document.getElementById(id)?.replaceWith(page.main.querySelector(`#${id}`) ?? "");
        }
      }
    } catch (error) {
      isSent = false;
      const reason = error instanceof TypeError ? "The server does not answer" : error.message;
      // Without a card a message is shown, whose link leads back to it.
      const place = document.getElementById("chosen") ?? main.querySelector("p");
      place.textContent = `${reason}: ${answer ? "the last step was not written." : "the next sentence is not shown."}`;
    }
  };
  const say = async (sent, submitter) => {
    // The last step is known when the steps before are written.
    if (sent.id === "undoing") await sending;
    const asked = sent.id === "undoing" ? document.getElementById("undoing") : sent;
    if (!asked) return;
    // The button went with the form that the last answer replaced.
    const body = new URLSearchParams(new FormData(asked, asked === sent ? submitter : null));
    const answer = sending.then(() => load(asked.action, { method: "POST", body, keepalive: true }));
    sending = answer.catch(() => {});
    turn(new URL(body.get("back"), location.href).href, answer);
  };
  if (isQueue) {
    main.addEventListener("click", (event) => {
      const link = event.target.closest("a[href]:not([data-at])");
      if (link?.pathname !== location.pathname || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      if (!isSent) turn(link.href);
    });
    main.addEventListener("submit", (event) => {
      if (event.target.method !== "post") return;
      event.preventDefault();
      if (!isSent) say(event.target, event.submitter);
    });
    setUp();
    lookAhead();
    return;
  }

  // After a correction the page comes back where it was, with the same words in focus.
  const place = "concord-place";
  addEventListener("pageshow", () => { isSent = false; });
  document.addEventListener("submit", (event) => {
    isSent = true;
    const focused = document.activeElement.closest("[data-at]");
    const at = focused ? Number(focused.dataset.at.split("-")[0]) : -1;
    sessionStorage.setItem(place, JSON.stringify([event.target.elements.back?.value, scrollY, at]));
  });
  const element = setUp();
  const [where, top, at] = JSON.parse(sessionStorage.getItem(place) ?? "[]");
  sessionStorage.removeItem(place);
  if (where === location.pathname + location.search) {
    const next = element ?? [...text.querySelectorAll("[data-at]")].find((one) => Number(one.dataset.at.split("-")[0]) >= at);
    if (at >= 0) next?.focus({ preventScroll: true });
    scrollTo({ top, behavior: "instant" });
  }
})();
