// A real OpenID provider on the loopback interface, for `tests/it/requires_tools/oidc_provider.rs`. It prints its issuer, then responds
// to each line of its input with one line, and ends with its input:
//   token ALG RESOURCE   an access token of the client credentials grant; `opaque` as ALG for one that is not a JWT
//   rotate               replaces all signing keys, as an operator does who restarts the provider with new ones
import { generateKeyPair, randomUUID, webcrypto } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

// The provider is made for newer releases of Node.js than Debian 12 has: these two are all that it misses there.
globalThis.crypto ??= webcrypto;
URL.parse ??= (text, base) => (URL.canParse(text, base) ? new URL(text, base) : null);
const { default: Provider } = await import("oidc-provider");

const AUDIENCES = { "https://plants.example": "plants", "https://other.example": "other" };
const SCOPE = "plants:read plants:write plants:delete";
const CLIENT = { client_id: "garden", client_secret: "a secret of the tests" };

async function signingKeys() {
  const make = promisify(generateKeyPair);
  const keys = {
    RS256: ["rsa", { modulusLength: 2048 }],
    ES256: ["ec", { namedCurve: "P-256" }],
    EdDSA: ["ed25519"],
    Ed25519: ["ed25519"],
  };
  return Promise.all(
    Object.entries(keys).map(async ([alg, options]) => {
      const { privateKey } = await make(...options);
      return { ...privateKey.export({ format: "jwk" }), alg, use: "sig", kid: `${alg}-${randomUUID()}` };
    }),
  );
}

function configuration(keys) {
  return {
    clients: [{ ...CLIENT, grant_types: ["client_credentials"], redirect_uris: [], response_types: [], scope: SCOPE }],
    scopes: SCOPE.split(" "),
    jwks: { keys },
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "EdDSA", "Ed25519"] },
    ttl: { ClientCredentials: 600 },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (context, resource) => {
          const audience = AUDIENCES[resource];
          // The tests choose the algorithm, which the resource server decides otherwise.
          const alg = context.get("x-test-algorithm");
          return alg === "opaque"
            ? { scope: SCOPE, audience, accessTokenFormat: "opaque" }
            : { scope: SCOPE, audience, accessTokenFormat: "jwt", jwt: { sign: { alg } } };
        },
      },
    },
  };
}

const server = createServer((request, response) => handle(request, response));
server.listen(0, "127.0.0.1");
await once(server, "listening");
const issuer = `http://127.0.0.1:${server.address().port}`;
let handle;
let keys;

async function start(signing) {
  keys = signing;
  handle = new Provider(issuer, configuration(keys)).callback();
}

async function token(alg, resource) {
  const response = await fetch(`${issuer}/token`, {
    method: "POST",
    headers: { "X-Test-Algorithm": alg },
    body: new URLSearchParams({ ...CLIENT, grant_type: "client_credentials", scope: SCOPE, resource }),
  });
  const body = await response.json();
  if (!response.ok) throw new Error(JSON.stringify(body));
  return body.access_token;
}

const commands = {
  token,
  rotate: async () => {
    await start(await signingKeys());
    return "rotated";
  },
};

await start(await signingKeys());
console.log(issuer);
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  console.log(await commands[command](...words));
}
process.exit();
