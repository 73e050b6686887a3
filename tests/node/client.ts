// Uses the client that openapi-typescript and openapi-fetch generate from the document, as an application does.
// `tests/it/requires_tools/clients.rs` generates `schema.ts` in the directory of a copy of this file, and runs the copy
// with BASE_URL and TOKEN in its environment.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type ApiError = components["schemas"]["Error"];

const { BASE_URL, TOKEN } = process.env;
const client = createClient<paths>({ baseUrl: BASE_URL, headers: { Authorization: `Bearer ${TOKEN}` } });

/// Returns the cursor of the next page. `Link` is relative to the address of the response.
function next(response: Response): string | undefined {
  const target = /<([^>]*)>; rel="next"/.exec(response.headers.get("link") ?? "")?.[1];
  return target === undefined ? undefined : (new URL(target, response.url).searchParams.get("after") ?? undefined);
}

const live = await client.GET("/livez");
assert.equal(live.data?.status, "live");

for (const id of [1, 2, 3, 4, 5]) {
  const created = await client.POST("/plants", { body: { id, name: `Plant ${id}`, tag: "indoor" } });
  assert.equal(created.response.status, 200);
  assert.deepEqual(created.data, { name: `Plant ${id}`, tag: "indoor" });
}

const duplicate = await client.POST("/plants", { body: { id: 1, name: "Rose" } });
assert.equal(duplicate.response.status, 409);
// One type for the errors of all statuses, whose code may be any integer.
const conflict: ApiError | undefined = duplicate.error;
assert.equal(conflict?.error, 40900);
assert.match(conflict.message, /id/);
const future: NonNullable<typeof duplicate.error> = { error: 49999, message: "a code of a later release" };
assert.equal(typeof future.error, typeof conflict.error);

const pages: (number | undefined)[][] = [];
for (let after: string | undefined, last = false; !last; last = after === undefined) {
  const page = await client.GET("/plants", { params: { query: { limit: 2, include: "id", after } } });
  assert.equal(page.error, undefined);
  pages.push(page.data.map((plant) => plant.id));
  after = next(page.response);
}
assert.deepEqual(pages, [[1, 2], [3, 4], [5]]);

const replaced = await client.PUT("/plants/{id}", { params: { path: { id: 2 } }, body: { name: "Fern", tag: "office" } });
assert.deepEqual(replaced.data, { name: "Fern", tag: "office" });
const office = await client.GET("/plants", { params: { query: { tag: "office", include: "id" } } });
assert.deepEqual(office.data, [{ id: 2, name: "Fern", tag: "office" }]);

const deleted = await client.DELETE("/plants/{id}", { params: { path: { id: 5 } } });
assert.equal(deleted.response.status, 204);
const again = await client.DELETE("/plants/{id}", { params: { path: { id: 5 } } });
assert.equal(again.response.status, 404);
assert.equal(again.error?.error, 40400);
