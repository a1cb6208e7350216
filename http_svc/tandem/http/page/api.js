// The server's interface: what is served, and answers as they are made.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `the server answers ${status}`);
    this.status = status;
    this.code = body?.error?.code;
  }
}

let key = "";

export function useKey(value) {
  key = value;
}

async function ask(path, body, signal) {
  const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  if (!answer.ok) throw new ApiError(answer.status, await answer.json().catch(() => null));
  return answer;
}

export async function models() {
  return (await (await ask("v1/models")).json()).data;
}

/** The tokens of the prompt that the model's template makes of messages: their texts, control tokens included. */
export async function promptTokens(body) {
  return (await (await ask("tokenize", { ...body, return_token_strs: true })).json()).token_strs;
}

/** Yields the chunks of an answer. Throws ApiError for what the server refuses, also in the middle. */
export async function* answer(body, signal) {
  const response = await ask("v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true }, timings: true }, signal);
  yield { request_id: response.headers.get("x-request-id") };
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, { error: { message: "the answer broke off" } });
    const events = (kept + value).split("\n\n");
    kept = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(0, chunk);
      yield chunk;
    }
  }
}
