// Plants on Fastify and better-sqlite3: `node fastify.mjs FILE PORT`. Schemas for bodies and responses, and the plugin for
// bearer tokens, as the documentation of Fastify recommends; WAL mode and prepared statements, as that of better-sqlite3 does.
import { createHash } from "node:crypto";
import bearerAuth from "@fastify/bearer-auth";
import Database from "better-sqlite3";
import Fastify from "fastify";

const [file, port] = process.argv.slice(2);
const database = new Database(file);
database.pragma("journal_mode = WAL");
// Acknowledged plants survive a power cut, as those of plantstore do.
database.pragma("synchronous = FULL");
const findUser = database.prepare("SELECT user_id FROM tokens WHERE hash = ?").pluck();
const list = database.prepare("SELECT name, tag FROM plants WHERE user_id = ? ORDER BY plant_id LIMIT ?");
const insert = database.prepare("INSERT INTO plants (user_id, plant_id, name, tag) VALUES (?, ?, ?, ?)");

const plant = { type: "object", properties: { name: { type: "string" }, tag: { type: "string" } } };
const newPlant = { type: "object", required: ["id", "name"], properties: { id: { type: "integer" }, ...plant.properties } };

const server = Fastify({ logger: true });
await server.register(bearerAuth, {
  keys: new Set(),
  auth: (token, request) => {
    request.user = findUser.get(createHash("sha256").update(token).digest());
    return request.user !== undefined;
  },
});
const listSchema = {
  querystring: { type: "object", properties: { limit: { type: "integer", default: 20 } } },
  response: { 200: { type: "array", items: plant } },
};
server.get("/plants", { schema: listSchema }, async (request) => list.all(request.user, request.query.limit));
server.post("/plants", { schema: { body: newPlant, response: { 200: plant } } }, async (request, reply) => {
  const { id, name, tag } = request.body;
  try {
    insert.run(request.user, id, name, tag ?? null);
  } catch (error) {
    if (error.code !== "SQLITE_CONSTRAINT_PRIMARYKEY") throw error;
    return reply.code(409).send({ message: "the id exists" });
  }
  return { name, tag };
});
await server.listen({ host: "127.0.0.1", port: Number(port) });
