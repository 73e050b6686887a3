// The service as any client meets it: pages by their `Link`, writes with an `Idempotency-Key`, and what passes is tried again.

import { parseExactly, plantBody } from "./json.js";

const PAGE = 1_000;
/// Plants are counted in larger pages than they are read.
const COUNTED_PAGE = 10_000;
/// How long one request may take before it counts as lost.
const TIMEOUT = 20_000;
/// Waits between attempts, where the server does not name its own; the last one repeats.
const WAITS = [500, 1_000, 2_000, 4_000, 8_000, 15_000];
/// Attempts of a write before a person decides. The key makes each of them safe.
const WRITE_ATTEMPTS = 5;
/// A server that asks for a longer wait than this is told to the person instead of waited for.
const LONGEST_WAIT = 60_000;

/// Statuses of what passes: nobody answered, too many requests, or something in between or the server itself is not there.
const PASSING = [0, 429, 502, 503, 504];

/// What went wrong, in words.
export class Failure extends Error {
  constructor(message, { status = 0, number = 0, retryAfter = null, scope = null } = {}) {
    super(message);
    this.status = status;
    this.number = number;
    /// The scope that the token lacks.
    this.scope = scope;
    this.retryAfter = retryAfter;
  }

  /// Whether the same request may succeed later: nobody answered, or the answer was to come back.
  get passes() {
    return PASSING.includes(this.status) || this.number === 40901;
  }
}

export class Api {
  #token;
  #onTrouble;
  /// What is waited out, by request.
  #troubles = new Map();
  #wake = new Set();
  #ended = new AbortController();

  /// `onTrouble` is told of a failure that is waited out, with the moment of the next attempt, and of nothing when none is.
  constructor(token, onTrouble) {
    this.#token = token;
    this.#onTrouble = onTrouble;
  }

  /// Ends all that is on its way or waits.
  end() {
    this.#ended.abort();
    this.tryNow();
  }

  /// Cuts the waits short.
  tryNow() {
    for (const wake of this.#wake) wake();
  }

  /// The pages of the list, one by one; nothing at all when the list is the one with this tag.
  async *pages(etag) {
    let address = `/plants?include=id,owner&limit=${PAGE}`;
    let headers = etag ? { "If-None-Match": etag } : {};
    while (address) {
      const answer = await this.#insist("GET", address, { headers, attempts: Infinity });
      if (answer.status === 304) return;
      yield { plants: parseExactly(answer.text), etag: answer.etag, next: answer.next };
      address = answer.next;
      headers = {};
    }
  }

  /// Counts the plants of this page and those after it, page by page, without reading who owns them.
  async *counts(page) {
    let address = page;
    while (address) {
      const [path, parameters] = address.split("?");
      const fields = new URLSearchParams(parameters);
      fields.set("limit", String(COUNTED_PAGE));
      fields.delete("include");
      const { text, next } = await this.#insist("GET", `${path}?${fields}`, { headers: {}, attempts: Infinity });
      yield { number: JSON.parse(text).length, hasNext: next !== null };
      address = next;
    }
  }

  create(plant, key) {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key };
    return this.#insist("POST", `/plants${ownerParameter(plant)}`, { headers, body: plantBody(plant) });
  }

  remove(plant, key) {
    return this.#insist("DELETE", removal(plant), { headers: { "Idempotency-Key": key } });
  }

  /// Sends a removal from a page that is about to go, and waits for nothing.
  removeAndGo(plant, key) {
    fetch(removal(plant), this.#options("DELETE", { "Idempotency-Key": key }, { keepalive: true })).catch(() => {});
  }

  /// Sends the request until the answer is one that stays the same, or as often as it may be sent.
  async #insist(method, address, { headers, body, attempts = WRITE_ATTEMPTS }) {
    const request = Symbol(address);
    try {
      for (let attempt = 1; ; attempt += 1) {
        try {
          return await this.#send(method, address, headers, body);
        } catch (failure) {
          const wait = failure.retryAfter ?? WAITS[Math.min(attempt, WAITS.length) - 1];
          if (!failure.passes || attempt >= attempts || wait > LONGEST_WAIT || this.#ended.signal.aborted) throw failure;
          this.#tell(request, { failure, until: Date.now() + wait });
          await this.#pause(wait);
          if (this.#ended.signal.aborted) throw failure;
        }
      }
    } finally {
      this.#tell(request, null);
    }
  }

  #tell(request, trouble) {
    this.#troubles.delete(request);
    if (trouble) this.#troubles.set(request, trouble);
    if (!this.#ended.signal.aborted) this.#onTrouble([...this.#troubles.values()].at(-1));
  }

  #pause(milliseconds) {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#wake.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, milliseconds);
      this.#wake.add(wake);
    });
  }

  async #send(method, address, headers, body) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    const timer = setTimeout(stop, TIMEOUT);
    this.#ended.signal.addEventListener("abort", stop);
    let response, text;
    try {
      response = await fetch(address, this.#options(method, headers, { body, signal: attempt.signal }));
      text = await response.text();
    } catch {
      throw new Failure(navigator.onLine ? "The server cannot be reached." : "You are offline.");
    } finally {
      clearTimeout(timer);
      this.#ended.signal.removeEventListener("abort", stop);
    }
    if (!response.ok && response.status !== 304) throw failureOf(response, text);
    return { status: response.status, text, etag: response.headers.get("ETag"), next: nextPage(response) };
  }

  #options(method, headers, more) {
    return {
      method,
      headers: { ...headers, Authorization: `Bearer ${this.#token}` },
      // Nothing of the list stays on the disk, and no redirect takes the token elsewhere.
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      ...more,
    };
  }
}

/// Without an owner it is about the caller's own.
function ownerParameter({ owner }) {
  return owner === undefined ? "" : `?owner=${encodeURIComponent(owner)}`;
}

function removal(plant) {
  return `/plants/${plant.id}${ownerParameter(plant)}`;
}

/// The address in `Link: </plants?…>; rel="next"`, always on this server.
function nextPage(response) {
  const link = /^<(\/[^/>][^>]*)>; rel="next"$/.exec(response.headers.get("Link") ?? "");
  return link ? link[1] : null;
}

function failureOf(response, text) {
  const { status } = response;
  const seconds = Number(response.headers.get("Retry-After") ?? NaN);
  const retryAfter = Number.isFinite(seconds) ? seconds * 1_000 : null;
  const scope = /error="insufficient_scope", scope="([^"]+)"/.exec(response.headers.get("WWW-Authenticate") ?? "")?.[1] ?? null;
  try {
    const { error, message } = parseExactly(text);
    if (typeof message === "string") return new Failure(sentence(message), { status, number: Number(error), retryAfter, scope });
  } catch {
    // Not our server's: something in between.
  }
  return new Failure(`The server answered ${status} and did not say why.`, { status, retryAfter });
}

/// The server's words as a sentence for people, who know nothing of backticks.
function sentence(message) {
  const words = message.replaceAll("`", "");
  return `${words[0]?.toUpperCase() ?? ""}${words.slice(1)}.`;
}
