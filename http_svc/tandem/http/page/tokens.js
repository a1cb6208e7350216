// Tokens as they stand in an answer's text: coloured by probability, with the alternatives of each.

const strict = new TextDecoder("utf-8", { fatal: true });
const box = document.getElementById("alternatives");

/** Lays tokens over the text of an answer: [{text, special, logprob, others}]. A token that the text does not have is a
 * control token; those that hold parts of one character become one. */
export function lay(entries, text) {
  const laid = [];
  let place = 0;
  let bytes = [];
  for (const entry of entries) {
    bytes.push(...entry.bytes);
    let piece;
    try {
      piece = strict.decode(new Uint8Array(bytes));
    } catch {
      continue; // the rest of the character comes with the next token
    }
    bytes = [];
    const bare = laid.length ? piece : piece.replace(/^ /, ""); // some vocabularies put a space in front of a text
    const found = [piece, bare].find((each) => each && text.startsWith(each, place));
    place += found?.length ?? 0;
    laid.push({ text: found ?? piece, special: found === undefined, logprob: entry.logprob, others: entry.top_logprobs ?? [] });
  }
  if (place < text.length) laid.push({ text: text.slice(place), special: false, logprob: null, others: [] });
  return laid;
}

export function tokenSpan(token) {
  const span = document.createElement("span");
  span.className = "token";
  if (token.special) span.classList.add("special");
  // By the square root: most tokens that are sampled are less probable than a tenth.
  if (token.logprob !== null) span.classList.add(`p${Math.min(9, Math.floor(Math.exp(token.logprob / 2) * 10))}`);
  span.textContent = token.text;
  span.token = token;
  return span;
}

/** Lets pointer and arrow keys show the alternatives of the tokens in an element. */
export function explain(element) {
  element.tabIndex = 0;
  element.setAttribute("aria-label", "Tokens of the answer; arrow keys show alternatives");
  element.addEventListener("pointerover", (event) => event.target.token && show(event.target));
  element.addEventListener("pointerout", hide);
  element.addEventListener("blur", hide);
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const spans = [...element.querySelectorAll(".token")];
    const next = spans[Math.max(0, Math.min(spans.length - 1, spans.findIndex((span) => span.classList.contains("chosen")) + step))];
    if (next) show(next);
  });
}

function show(span) {
  hide();
  const { token } = span;
  if (token.logprob === null) return;
  span.classList.add("chosen");
  const others = token.others.filter((other) => other.token !== token.text);
  const rows = [{ token: token.text, logprob: token.logprob, taken: true }, ...others];
  box.replaceChildren(
    ...rows.map(({ token: text, logprob, taken }) => {
      const row = document.createElement("div");
      if (taken) row.className = "taken";
      const name = document.createElement("span");
      name.textContent = JSON.stringify(text);
      const share = document.createElement("span");
      share.textContent = `${(100 * Math.exp(logprob)).toFixed(1)} %`;
      row.append(name, share);
      return row;
    }),
  );
  box.hidden = false;
  const { left, bottom, top } = span.getBoundingClientRect();
  const fits = bottom + box.offsetHeight + 8 < innerHeight;
  box.style.left = `${Math.max(4, Math.min(left, innerWidth - box.offsetWidth - 4))}px`;
  box.style.top = `${fits ? bottom + 4 : Math.max(4, top - box.offsetHeight - 4)}px`;
}

function hide() {
  document.querySelectorAll(".token.chosen").forEach((span) => span.classList.remove("chosen"));
  box.hidden = true;
}
