// Live updates: the stream of server-sent events that says when the list has changed. It is read with `fetch`, because `EventSource`
// cannot send a token.

/// Pause before the stream is opened again, in milliseconds, unless the server names another; doubled after each failure.
const REOPEN_PAUSE = 2_000;
const REOPEN_PAUSE_MAX = 60_000;
/// Time without any text, in milliseconds, after which the connection counts as lost. The server sends a comment every 15 s.
const SILENCE_MAX = 45_000;
/// Statuses after which the stream is not opened again: the token is not accepted, or the server has no such stream.
const FINAL_STATUSES = [400, 401, 403, 404, 405];

export class Events {
  #onEtag;
  #lastId = null;
  #pause = REOPEN_PAUSE;
  /// Ends the stream; `null` if none is followed.
  #stop = null;

  /// `onEtag` is called with the entity tag of the list, at first and when it has changed.
  constructor(onEtag) {
    this.#onEtag = onEtag;
  }

  /// Follows the stream until `stop`, and opens it again when it has ended. Does nothing if it is followed already.
  follow(api) {
    if (this.#stop) return;
    const stop = (this.#stop = new AbortController());
    this.#repeat(api, stop.signal).finally(() => {
      if (this.#stop === stop) this.#stop = null;
    });
  }

  stop() {
    this.#stop?.abort();
    this.#stop = null;
  }

  /// Stops, and clears what belongs to the user.
  forget() {
    this.stop();
    this.#lastId = null;
  }

  async #repeat(api, signal) {
    let failures = 0;
    while (!signal.aborted) {
      let retryAfter = 0;
      try {
        await this.#read(api, signal, () => (failures = 0));
      } catch (failure) {
        if (FINAL_STATUSES.includes(failure.status)) return;
        retryAfter = failure.retryAfter ?? 0;
      }
      const pause = Math.max(retryAfter, Math.min(this.#pause * 2 ** failures, REOPEN_PAUSE_MAX));
      failures += 1;
      // At random, so that the clients of a restarted server do not return all at once.
      await pauseFor(pause * (1 + Math.random() / 2), signal);
    }
  }

  /// Reads the stream to its end. `onText` is called for all that arrives.
  async #read(api, signal, onText) {
    const silence = new AbortController();
    let timer;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MAX);
    };
    listen();
    try {
      const reader = await api.events(this.#lastId, AbortSignal.any([signal, silence.signal]));
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done || signal.aborted) return;
        listen();
        onText();
        const events = (text + value).split("\n\n");
        // The last one is not complete yet.
        text = events.pop();
        for (const event of events) this.#take(event);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(event) {
    const fields = new Map(event.split("\n").map((line) => /^([^:]*):? ?(.*)$/.exec(line).slice(1)));
    if (fields.has("retry")) this.#pause = Number(fields.get("retry")) || REOPEN_PAUSE;
    if (fields.has("id")) this.#lastId = fields.get("id");
    if (fields.get("event") === "plants") this.#onEtag(JSON.parse(fields.get("data")).etag);
  }
}

function pauseFor(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
