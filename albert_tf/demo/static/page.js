"use strict";

// Everything that comes from the model is put in as text, never as markup.
function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function percent(share) {
  return (100 * share).toFixed(1) + " %";
}

function word(piece) {
  return piece.replaceAll("▁", " ").trim() || piece;
}

function bars(list, clean = (label) => label) {
  return element("ol", "bars", ...list.map(({ label, share }) => {
    const bar = document.createElement("i");
    bar.style.width = 100 * share + "%";
    return element("li", "", bar,
      element("span", "", element("bdi", "", clean(label))),
      element("span", "", percent(share)));
  }));
}

// Offsets count characters, not the UTF-16 units of JavaScript's strings.
function marked({ text, spans }) {
  const characters = Array.from(text);
  const box = element("p", "marked");
  box.dir = "auto";
  let at = 0;
  for (const { start, end, label } of spans) {
    box.append(characters.slice(at, start).join(""));
    box.append(element("mark", "", characters.slice(start, end).join(""),
      element("small", "", label)));
    at = end;
  }
  box.append(characters.slice(at).join(""));
  return box;
}

function choice(label, number, change) {
  const select = element("select", "", ...Array.from({ length: number },
    (_, i) => new Option(String(i + 1), String(i))));
  select.addEventListener("change", change);
  return [element("label", "", label, select), select];
}

function attention({ pieces, attention: weights }) {
  const line = element("p", "pieces");
  let chosen = 0;
  const [layerLabel, layer] = choice("Layer", weights.length, draw);
  const heads = weights[0].length;
  const [headLabel, head] = choice("Head", heads, draw);
  head.prepend(new Option("mean", "mean"));
  head.value = "mean";
  const buttons = pieces.map((piece, i) => {
    const button = element("button", "", word(piece));
    button.type = "button";
    button.addEventListener("click", () => { chosen = i; draw(); });
    return button;
  });
  line.append(...buttons);

  function draw() {
    const all = weights[Number(layer.value)];
    const rows = head.value === "mean" ? all : [all[Number(head.value)]];
    const shares = pieces.map((_, to) =>
      rows.reduce((sum, row) => sum + row[chosen][to], 0) / rows.length);
    const most = Math.max(...shares);
    buttons.forEach((button, i) => {
      const strength = most > 0 ? shares[i] / most : 0;
      button.style.backgroundColor =
        `color-mix(in srgb, var(--bar) ${Math.round(100 * strength)}%, transparent)`;
      button.title = percent(shares[i]);
      button.setAttribute("aria-pressed", String(i === chosen));
      button.setAttribute("aria-label", `${word(pieces[i])}, ${percent(shares[i])}`);
    });
  }
  draw();
  return element("div", "",
    element("p", "title", "Choose a piece; the darker another, the more it is looked at."),
    element("div", "controls", layerLabel, headLabel), line);
}

function shown(answer) {
  const parts = [];
  if (answer.message) parts.push(element("p", "message", element("bdi", "", answer.message)));
  if ("score" in answer) parts.push(element("p", "message", answer.score.toFixed(3)));
  if (answer.marked) parts.push(marked(answer.marked));
  if (answer.bars) parts.push(bars(answer.bars));
  (answer.masks || []).forEach((list, i, all) => {
    if (all.length > 1) parts.push(element("p", "title", `Mask ${i + 1}`));
    parts.push(bars(list, word));
  });
  if (answer.attention) parts.push(attention(answer));
  return parts;
}

async function ask(form) {
  const result = form.parentElement.querySelector(".result");
  const button = form.querySelector("button");
  const values = Object.fromEntries(new FormData(form));
  button.disabled = true;
  result.setAttribute("aria-busy", "true");
  try {
    const response = await fetch("ask/" + form.dataset.tool, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(values),
    });
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    result.replaceChildren(...shown(found.answer),
      element("p", "time", `${(1000 * found.seconds).toFixed(0)} ms`));
  } catch (problem) {
    result.replaceChildren(element("p", "error", problem.message));
  } finally {
    button.disabled = false;
    result.removeAttribute("aria-busy");
  }
}

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
}
