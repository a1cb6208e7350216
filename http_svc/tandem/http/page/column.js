// One column: its parameters, its conversation, and the answer that is being made.

import { answer, ApiError, promptTokens } from "./api.js";
import { explain, lay, tokenSpan } from "./tokens.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

export class Column {
  constructor() {
    this.root = document.getElementById("column").content.firstElementChild.cloneNode(true);
    this.log = this.root.querySelector(".log");
    this.messages = [];
    this.answers = [];
    this.withTokens = false;
  }

  field(name) {
    return this.root.querySelector(`[name=${name}]`);
  }

  clear() {
    this.messages = [];
    this.answers = [];
    this.log.replaceChildren();
  }

  /** What the server is asked, without the model; throws where JSON is none. */
  parameters(seed) {
    const given = { seed };
    for (const name of NUMBERS) {
      const value = this.field(name).value.trim();
      if (value) given[name] = Number(value);
    }
    for (const name of ["others", "tools"]) {
      const text = this.field(name).value.trim();
      if (!text) continue;
      try {
        const value = JSON.parse(text);
        Object.assign(given, name === "tools" ? (value.length ? { tools: value } : {}) : value);
      } catch (error) {
        throw new ApiError(0, { error: { message: `${name}: ${error.message}` } });
      }
    }
    return given;
  }

  /** Adds the user's message and the answer to it, as it is made. After an error the message is forgotten. */
  async say(text, model, seed, signal) {
    const said = element("div", "turn user", text);
    const turn = new Turn(this.withTokens);
    this.log.append(said, turn.root);
    this.scroll();
    const system = this.field("system").value.trim();
    const opening = system ? [{ role: "system", content: system }] : [];
    try {
      const parameters = this.parameters(seed);
      for (;;) {
        const messages = [...opening, ...this.messages, { role: "user", content: text }];
        turn.began(model, messages, parameters.tools);
        const asked = { model, messages, logprobs: true, top_logprobs: 5, include_stop: true, ...parameters };
        try {
          for await (const chunk of answer(asked, signal)) {
            turn.take(chunk);
            this.scroll();
          }
          break;
        } catch (error) {
          if (error.code !== "context_length_exceeded" || !this.messages.length) throw error;
          this.messages.splice(0, 2);
          turn.note("the context is full: the oldest turn is not shown to the model any more");
        }
      }
      turn.ended(parameters.seed);
    } catch (error) {
      if (error.name !== "AbortError" || !turn.text) {
        turn.failed(error.name === "AbortError" ? "stopped" : error.message);
        this.scroll();
        if (error.status === 401) throw error;
        return;
      }
      turn.ended(seed, "stopped");
    }
    this.scroll();
    this.answers.push(turn);
    const calls = turn.calls.filter(Boolean);
    this.messages.push({ role: "user", content: text });
    this.messages.push({ role: "assistant", content: turn.text, ...(calls.length && { tool_calls: calls }) });
  }

  showTokens(wanted) {
    this.withTokens = wanted;
    this.answers.forEach((turn) => turn.showTokens(wanted));
  }

  /** Shows the end of what is said, whatever scrolls: the log, or on a phone all columns together. */
  scroll() {
    this.log.lastElementChild?.scrollIntoView({ block: "end" });
  }
}

/** An answer: reasoning, tool calls, text or tokens, statistics. */
class Turn {
  constructor(withTokens) {
    this.root = element("div", "turn assistant");
    this.reasoning = element("div", "reasoning");
    this.body = element("div", "text");
    this.callList = element("div", "calls");
    this.statistics = element("div", "statistics");
    this.root.append(this.body);
    this.withTokens = withTokens;
    this.text = "";
    this.thought = "";
    this.entries = [];
    this.calls = [];
    this.usage = null;
    this.timings = null;
    this.finish = "";
    this.first = 0;
    explain(this.body);
  }

  began(model, messages, tools) {
    this.start = performance.now();
    this.prompt = { model, messages, ...(tools && { tools }) };
  }

  take(chunk) {
    this.request = chunk.request_id ?? this.request;
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    const [choice] = chunk.choices ?? [];
    if (!choice) return;
    const { delta } = choice;
    this.finish = choice.finish_reason ?? this.finish;
    const thought = delta.reasoning_content ?? delta.reasoning ?? "";
    if (!this.first && (delta.content || thought || delta.tool_calls)) this.first = performance.now();
    if (thought) {
      this.thought += thought;
      this.reasoning.textContent = this.thought;
      if (!this.reasoning.isConnected) this.root.prepend(this.reasoning);
    }
    for (const part of delta.tool_calls ?? []) this.call(part);
    this.text += delta.content ?? "";
    this.entries.push(...(choice.logprobs?.content ?? []));
    this.grow(delta.content ?? "");
  }

  call({ index, id, function: part }) {
    const call = (this.calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
    if (!this.callList.isConnected) this.body.after(this.callList);
    this.callList.replaceChildren(
      ...this.calls.filter(Boolean).map(({ function: called }) => {
        const row = element("div", "call", `calls ${called.name} `);
        row.append(element("code", "", called.arguments));
        return row;
      }),
    );
  }

  /** While an answer grows, its text is appended; tokens are laid over all of it once a frame. */
  grow(text) {
    if (!this.withTokens) this.body.append(text);
    else this.frame ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = undefined;
    this.body.classList.toggle("tokens", this.withTokens);
    this.body.replaceChildren(...(this.withTokens ? lay(this.entries, this.text).map(tokenSpan) : [this.text]));
  }

  showTokens(wanted) {
    this.withTokens = wanted;
    this.draw();
  }

  note(message) {
    this.root.prepend(element("div", "statistics", message));
  }

  failed(message) {
    this.root.append(element("div", "error", message));
  }

  ended(seed, how = this.finish) {
    this.draw();
    const now = performance.now();
    const wait = this.first ? `${Math.round(this.first - this.start)} ms to the first token` : "";
    const tokens = this.usage?.completion_tokens ?? this.entries.length;
    const speed = tokens > 1 && now > this.first ? `${((1000 * (tokens - 1)) / (now - this.first)).toFixed(1)} tokens/s` : "";
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const prompt = this.usage ? `prompt ${this.usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}` : "";
    const hops = Object.entries(this.timings ?? {}).map(([name, seconds]) => `${name} ${Math.round(1000 * seconds)} ms`);
    const all = [`${tokens} tokens`, speed, wait, prompt, ...hops, `seed ${seed}`, how && `ended by ${how}`];
    this.statistics.textContent = `${all.filter(Boolean).join(" · ")} `;
    this.statistics.title = `request ${this.request}`;
    const show = element("button", "", "prompt");
    show.type = "button";
    show.title = "The prompt as the model gets it, control tokens included";
    show.addEventListener("click", () => this.showPrompt(show));
    this.statistics.append(show);
    this.root.append(this.statistics);
  }

  async showPrompt(button) {
    button.disabled = true;
    const shown = element("div", "reasoning");
    try {
      const pieces = await promptTokens(this.prompt);
      const special = (piece) => /^<.+>$/s.test(piece);
      shown.append(...pieces.map((text) => tokenSpan({ text, special: special(text), logprob: null, others: [] })));
    } catch (error) {
      shown.append(element("span", "error", error.message));
    }
    this.root.append(shown);
  }
}
