// The page: columns, the composer, and the keys.

import { ApiError, models, useKey } from "./api.js";
import { Column } from "./column.js";

const EXAMPLES = ["Good morrow. How fares my lady?", "Who are you?", "Tell me of the sea."];
const at = (id) => document.getElementById(id);
const columns = [new Column(), new Column()];
let running = null;

const shown = () => columns.filter((column) => column.root.isConnected);
const pressed = (id) => at(id).getAttribute("aria-pressed") === "true";

function toggle(id, then) {
  at(id).setAttribute("aria-pressed", String(!pressed(id)));
  then(pressed(id));
}

function compare(wanted) {
  if (wanted) {
    at("columns").append(columns[1].root);
    columns.forEach((column) => (column.root.querySelector("details").open = true));
  } else columns[1].root.remove();
}

function busy(is) {
  at("send").disabled = is;
  at("stop").disabled = !is;
}

function note(error) {
  if (error.status === 401) {
    at("key-panel").open = true;
    at("key").focus();
  }
}

async function say(text) {
  if (running || !text.trim()) return;
  at("examples").replaceChildren();
  at("message").value = "";
  running = new AbortController();
  busy(true);
  const given = columns[0].field("seed").value.trim();
  const seed = given ? Number(given) : Math.floor(Math.random() * 2 ** 31);
  const answers = shown().map((column) => column.say(text, at("model").value, seed, running.signal));
  for (const { reason } of await Promise.allSettled(answers)) if (reason) note(reason);
  running = null;
  busy(false);
  if (!at("key-panel").open) at("message").focus();
}

async function load() {
  try {
    const served = await models();
    at("model").replaceChildren(...served.map(({ id }) => new Option(id)));
  } catch (error) {
    at("model").replaceChildren(new Option(error instanceof ApiError ? error.message : "the server cannot be reached", ""));
    note(error);
  }
}

at("columns").append(columns[0].root);
at("examples").append(
  ...EXAMPLES.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => say(text));
    return button;
  }),
);
at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  say(at("message").value);
});
at("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  say(at("message").value);
});
at("stop").addEventListener("click", () => running?.abort());
at("clear").addEventListener("click", () => {
  running?.abort();
  columns.forEach((column) => column.clear());
  at("message").focus();
});
at("compare").addEventListener("click", () => toggle("compare", compare));
at("tokens").addEventListener("click", () => toggle("tokens", (wanted) => columns.forEach((column) => column.showTokens(wanted))));
at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key").value.trim());
  at("key-panel").open = false;
  load();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  const button = event.altKey && { c: "compare", t: "tokens", n: "clear" }[event.key.toLowerCase()];
  if (!button) return;
  event.preventDefault();
  at(button).click();
});
load();
