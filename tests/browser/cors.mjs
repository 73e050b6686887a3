// Pages of other origins: an allowed origin can use the service as documented, other origins cannot read anything.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { BASE_URL, TOKEN, ask, main, openPage, withBrowser } from "./browser.mjs";
import { stored } from "./garden.mjs";

/// Response header fields that CORS exposes to a page (docs/how-to/cors.md).
const EXPOSED = ["ETag", "Link", "Location", "Idempotency-Replayed", "RateLimit", "RateLimit-Policy", "Retry-After", "WWW-Authenticate", "X-Request-Id"];

/// Serves an empty page on a new origin, and returns the origin.
async function elsewhere() {
  const server = createServer((_, response) => response.setHeader("Content-Type", "text/html").end("<!doctype html><title>Elsewhere</title>"));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${server.address().port}`;
}

/// Opens a page of this origin. Returns it with a function that calls the service from the page and returns the response
/// or error that the page sees.
async function caller(browser, origin, service) {
  const page = await openPage(browser);
  page.tolerate(/foreign request/, /status of 4\d\d/);
  await page.goto(origin);
  const call = (method, path, { headers = {}, body, token = TOKEN } = {}) => {
    const authorization = token ? { Authorization: `Bearer ${token}` } : {};
    return page.evaluate(
      async ([address, options, exposed]) => {
        try {
          const response = await fetch(address, options);
          const seen = Object.fromEntries(exposed.map((name) => [name, response.headers.get(name)]));
          return { status: response.status, seen, text: await response.text(), all: [...response.headers.keys()] };
        } catch (error) {
          return { fault: error.name };
        }
      },
      [service + path, { method, headers: { ...authorization, ...headers }, body }, EXPOSED],
    );
  };
  return { page, call };
}

async function allowed(browser, origin, service) {
  const { page, call } = await caller(browser, origin, service);
  const json = { "Content-Type": "application/json" };
  const keyed = { ...json, "Idempotency-Key": "from-elsewhere" };
  const body = '{"id":1,"name":"Rose"}';
  const created = await call("POST", "/plants", { headers: { ...keyed, "X-Request-Id": "elsewhere-1" }, body });
  assert.equal(created.status, 200);
  assert.equal(created.seen.Location, "/plants/1");
  assert.equal(created.seen["X-Request-Id"], "elsewhere-1");
  const again = await call("POST", "/plants", { headers: keyed, body });
  assert.deepEqual([again.status, again.seen["Idempotency-Replayed"]], [200, "true"]);
  assert.equal((await call("POST", "/plants", { headers: json, body: '{"id":2,"name":"Tulip"}' })).status, 200);

  const list = await call("GET", "/plants?limit=1&include=id");
  assert.deepEqual([list.status, list.text], [200, '[{"id":1,"name":"Rose"}]']);
  assert.match(list.seen.Link, /^<\/plants\?.*>; rel="next"$/);
  assert.match(list.seen.RateLimit, /^"user";r=\d+;t=\d+$/);
  assert.match(list.seen["RateLimit-Policy"], /^"user";q=\d+;w=\d+$/);
  assert.ok(!list.all.includes("vary"), "a header field that is not exposed cannot be read");
  const same = await call("GET", "/plants?limit=1&include=id", { headers: { "If-None-Match": list.seen.ETag } });
  assert.deepEqual([same.status, same.text], [304, ""]);

  for (const id of [1, 2]) assert.equal((await call("DELETE", `/plants/${id}`)).status, 204);
  const missing = await call("DELETE", "/plants/1");
  assert.deepEqual([missing.status, JSON.parse(missing.text).error], [404, 40400]);
  const stranger = await call("GET", "/plants", { token: "pst_wrong" });
  assert.equal(stranger.status, 401);
  assert.match(stranger.seen["WWW-Authenticate"], /error="invalid_token"/);
  assert.equal((await call("GET", "/plants", { token: null })).status, 401);

  let limited;
  do limited = await call("GET", "/plants");
  while (limited.status === 200);
  assert.equal(limited.status, 429);
  assert.match(limited.seen["Retry-After"], /^\d+$/);
  // The browser does not send header fields and methods that the preflight does not allow.
  page.tolerate(/blocked by CORS policy/, /ERR_FAILED/);
  assert.equal((await call("GET", "/plants", { headers: { "X-Other": "x" } })).fault, "TypeError");
  assert.equal((await call("PATCH", "/plants")).fault, "TypeError");
  page.check();
}

async function rejected(browser, origin, service) {
  const { page, call } = await caller(browser, origin, service);
  page.tolerate(/blocked by CORS policy/, /ERR_FAILED/);
  const body = '{"id":3,"name":"Weed"}';
  const calls = [
    ["GET", "/plants"],
    ["GET", "/livez", { token: null }],
    ["POST", "/plants", { headers: { "Content-Type": "application/json" }, body }],
    ["POST", "/plants", { headers: { "Content-Type": "text/plain" }, body, token: null }],
    ["DELETE", "/plants/9"],
  ];
  for (const [method, path, options] of calls) {
    assert.deepEqual(await call(method, path, options), { fault: "TypeError" }, `${method} ${path} from ${origin}`);
  }
  assert.equal(await stored(), '[{"id":9,"name":"Oak"}]', "the requests had no effect");
  page.check();
}

main(() =>
  withBrowser(async (browser) => {
    const [origin, other] = [await elsewhere(), await elsewhere()];
    const service = await ask(`allow ${origin}`);
    await rejected(browser, other, service);
    // A server without allowed origins.
    await rejected(browser, origin, BASE_URL);
    await allowed(browser, origin, service);
  }),
);
