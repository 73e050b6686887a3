// Client of the HTTP API: pages of lists by `Link`, writes with an `Idempotency-Key`, retries after transient failures, and the stream of
// events.

import { parseExactly, plantBody } from "./json.js";

const PAGE_SIZE = 1_000;
/// Page size for counting, which needs less memory than reading.
const COUNT_PAGE_SIZE = 10_000;
/// Time limit of a request in milliseconds.
const TIMEOUT = 20_000;
/// Pauses between attempts without a `Retry-After`, in milliseconds; the last one repeats.
const RETRY_PAUSES = [500, 1_000, 2_000, 4_000, 8_000, 15_000];
/// Attempts of a write before the user decides. The idempotency key makes retries safe.
const WRITE_ATTEMPTS = 5;
/// Longest `Retry-After` that is waited for, in milliseconds. A longer one is shown as a failure.
const RETRY_PAUSE_MAX = 60_000;

const EVENT_STREAM = "text/event-stream";
const JSON_BODY = { "Content-Type": "application/json" };

/// Statuses of transient failures: no response (0), too many requests, or an unavailable server or proxy.
const TRANSIENT_STATUSES = [0, 429, 502, 503, 504];

/// A failed request. The message is for the user.
export class Failure extends Error {
  /// `code` is the error code of the service.
  constructor(message, { status = 0, code = 0, retryAfter = null, scope = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    /// The scope that the token lacks.
    this.scope = scope;
    this.retryAfter = retryAfter;
  }

  /// True if the same request may succeed later.
  get isTransient() {
    return TRANSIENT_STATUSES.includes(this.status) || this.code === 40901;
  }
}

export class Api {
  #token;
  #onRetry;
  /// Failures of requests that wait for a retry, by request.
  #retries = new Map();
  #wake = new Set();
  #ended = new AbortController();

  /// `onRetry` is called with the last failure that waits for a retry and the time of the next attempt, or with `undefined`.
  constructor(token, onRetry) {
    this.#token = token;
    this.#onRetry = onRetry;
  }

  /// Uses another token from now on, also for requests that wait for a retry.
  useToken(token) {
    this.#token = token;
  }

  /// Aborts all requests, also those that wait for a retry.
  end() {
    this.#ended.abort();
    this.tryNow();
  }

  /// Retries at once what waits for a retry.
  tryNow() {
    for (const wake of this.#wake) wake();
  }

  /// Yields the pages of the list, or of the plants with this tag or of this owner; none if the list still has this entity tag.
  async *pages({ etag = null, tag = null, owner = null }) {
    const fields = new URLSearchParams({ include: "id,owner", limit: String(PAGE_SIZE) });
    for (const [name, value] of [["tag", tag], ["owner", owner]]) if (value !== null) fields.set(name, value);
    let address = `/plants?${fields}`;
    let headers = etag ? { "If-None-Match": etag } : {};
    while (address) {
      const response = await this.#sendWithRetries("GET", address, { headers, attempts: Infinity });
      if (response.status === 304) return;
      yield { plants: parseExactly(response.text), etag: response.etag, next: response.next };
      address = response.next;
      headers = {};
    }
  }

  /// Yields the number of plants of this page and of each page after it.
  async *counts(page) {
    let address = page;
    while (address) {
      const [path, parameters] = address.split("?");
      const fields = new URLSearchParams(parameters);
      fields.set("limit", String(COUNT_PAGE_SIZE));
      fields.delete("include");
      const { text, next } = await this.#sendWithRetries("GET", `${path}?${fields}`, { headers: {}, attempts: Infinity });
      yield { number: JSON.parse(text).length, hasNext: next !== null };
      address = next;
    }
  }

  /// Returns the plant with this id; `null` if the owner has none.
  async plant(plant) {
    try {
      const { text } = await this.#sendWithRetries("GET", `${plantPath(plant)}&include=id,owner`, { headers: {} });
      return parseExactly(text);
    } catch (failure) {
      if (failure.status === 404) return null;
      throw failure;
    }
  }

  async me() {
    return parseExactly((await this.#sendWithRetries("GET", "/me", { headers: {}, attempts: Infinity })).text);
  }

  async tokens() {
    return parseExactly((await this.#sendWithRetries("GET", "/tokens", { headers: {} })).text);
  }

  async shares() {
    return parseExactly((await this.#sendWithRetries("GET", "/shares", { headers: {} })).text);
  }

  /// Creates a token and returns it with its secret. It is not retried, because a token whose response is lost would stay valid.
  async createToken(token) {
    const options = { headers: JSON_BODY, body: JSON.stringify(token), attempts: 1 };
    return parseExactly((await this.#sendWithRetries("POST", "/tokens", options)).text);
  }

  revokeToken(id) {
    return this.#sendWithRetries("DELETE", `/tokens/${id}`, { headers: {} });
  }

  grantShare(user, role) {
    return this.#sendWithRetries("PUT", sharePath(user), { headers: JSON_BODY, body: JSON.stringify({ role }) });
  }

  revokeShare(user) {
    return this.#sendWithRetries("DELETE", sharePath(user), { headers: {} });
  }

  acceptShare(owner) {
    return this.#sendWithRetries("PUT", receivedPath(owner), { headers: {} });
  }

  /// Declines the offer of an owner, or ends the access to the owner's plants.
  leaveShare(owner) {
    return this.#sendWithRetries("DELETE", receivedPath(owner), { headers: {} });
  }

  create(plant, key) {
    const headers = { ...JSON_BODY, "Idempotency-Key": key };
    return this.#sendWithRetries("POST", `/plants${ownerParameter(plant)}`, { headers, body: plantBody(plant) });
  }

  replace(plant, key) {
    const headers = { ...JSON_BODY, "Idempotency-Key": key };
    return this.#sendWithRetries("PUT", plantPath(plant), { headers, body: plantBody(plant) });
  }

  remove(plant, key) {
    return this.#sendWithRetries("DELETE", plantPath(plant), { headers: { "Idempotency-Key": key } });
  }

  /// Sends a removal while the page is being closed, without waiting for the response.
  removeWithoutWaiting(plant, key) {
    fetch(plantPath(plant), this.#options("DELETE", { "Idempotency-Key": key }, { keepalive: true })).catch(() => {});
  }

  /// Opens the stream of events after the one with this id, and returns a reader of its text.
  async events(lastId, signal) {
    const headers = { Accept: EVENT_STREAM, ...(lastId === null ? {} : { "Last-Event-ID": lastId }) };
    const response = await fetch("/events", this.#options("GET", headers, { signal: AbortSignal.any([signal, this.#ended.signal]) }));
    const isStream = response.headers.get("Content-Type")?.startsWith(EVENT_STREAM);
    if (!response.ok || !isStream) throw failureOf(response, await response.text());
    return response.body.pipeThrough(new TextDecoderStream()).getReader();
  }

  /// Sends a request, and retries it after transient failures.
  async #sendWithRetries(method, address, { headers, body, attempts = WRITE_ATTEMPTS }) {
    const request = Symbol(address);
    try {
      for (let attempt = 1; ; attempt += 1) {
        try {
          return await this.#send(method, address, headers, body);
        } catch (failure) {
          const wait = failure.retryAfter ?? RETRY_PAUSES[Math.min(attempt, RETRY_PAUSES.length) - 1];
          if (!failure.isTransient || attempt >= attempts || wait > RETRY_PAUSE_MAX || this.#ended.signal.aborted) throw failure;
          this.#reportRetry(request, { failure, until: Date.now() + wait });
          await this.#pause(wait);
          if (this.#ended.signal.aborted) throw failure;
        }
      }
    } finally {
      this.#reportRetry(request, null);
    }
  }

  #reportRetry(request, retry) {
    this.#retries.delete(request);
    if (retry) this.#retries.set(request, retry);
    if (!this.#ended.signal.aborted) this.#onRetry([...this.#retries.values()].at(-1));
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
      // The list is not stored on disk, and the token is not sent to the target of a redirect.
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      ...more,
    };
  }
}

/// Returns the query for the plants of another owner; "" for the user's own.
function ownerParameter({ owner }) {
  return owner === undefined ? "" : `?owner=${encodeURIComponent(owner)}`;
}

function sharePath(user) {
  return `/shares/${encodeURIComponent(user)}`;
}

function receivedPath(owner) {
  return `/shares/received/${encodeURIComponent(owner)}`;
}

function plantPath(plant) {
  return `/plants/${plant.id}${ownerParameter(plant)}`;
}

/// Returns the path in `Link: </plants?…>; rel="next"`, which is always on this server.
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
    if (typeof message === "string") return new Failure(sentence(message), { status, code: Number(error), retryAfter, scope });
  } catch {
    // Not a response of the service, but of a proxy.
  }
  return new Failure(`The server answered ${status} and did not say why.`, { status, retryAfter });
}

/// Turns a message of the server into a sentence for people, without backticks.
function sentence(message) {
  const words = message.replaceAll("`", "");
  return `${words[0]?.toUpperCase() ?? ""}${words.slice(1)}.`;
}
