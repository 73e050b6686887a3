// A real OpenID provider on the loopback interface, for `tests/it/requires_tools/oidc_provider.rs` and `sign_in.rs`. It prints its
// issuer, then responds to each line of its input with one line, and ends with its input:
//   token ALG RESOURCE   an access token of the client credentials grant; `opaque` as ALG for one that is not a JWT
//   rotate               replaces all signing keys, as an operator does who restarts the provider with new ones
//   register URL         adds the public client `console`, whose users come back to this URL from its login page
//   lifetime SECONDS     changes the lifetime of the access tokens that users get from now on; it may be negative
//   format FORMAT        changes their format, `jwt` or `opaque`
import { generateKeyPair, randomUUID, webcrypto } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

// The provider needs these two functions, which the Node.js of Debian 12 does not have.
globalThis.crypto ??= webcrypto;
URL.parse ??= (text, base) => (URL.canParse(text, base) ? new URL(text, base) : null);
const { default: Provider } = await import("oidc-provider");

const AUDIENCES = {
  "https://plants.example": "plants",
  "https://other.example": "other",
  "https://garden.example": "https://garden.example",
};
const SCOPE = "plants:read plants:write plants:delete tokens:manage shares:manage";
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

/// The client of the console, and the access tokens of its users.
let consoleClient = [];
let lifetime = 600;
let format = "jwt";

function configuration(keys) {
  const service = { ...CLIENT, grant_types: ["client_credentials"], redirect_uris: [], response_types: [], scope: SCOPE };
  return {
    clients: [service, ...consoleClient],
    scopes: ["openid", ...SCOPE.split(" ")],
    cookies: { keys: ["a key of the tests"] },
    jwks: { keys },
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "EdDSA", "Ed25519"] },
    ttl: { ClientCredentials: 600 },
    formats: {
      customizers: {
        jwt: (_context, token, { payload }) => {
          // The provider itself issues no token that has expired already.
          if (token.clientId === "console") payload.exp = payload.iat + lifetime;
        },
      },
    },
    features: {
      // Its own pages for login and consent, which accept every name and password.
      devInteractions: { enabled: true },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (context, resource) => {
          const audience = AUDIENCES[resource];
          // The tests choose the algorithm, which usually depends on the resource server.
          const alg = context.get("x-test-algorithm");
          if (!alg) return { scope: SCOPE, audience, accessTokenFormat: format, jwt: { sign: { alg: "ES256" } } };
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
  register: async (url) => {
    const addresses = { redirect_uris: [url], post_logout_redirect_uris: [url] };
    consoleClient = [{ client_id: "console", token_endpoint_auth_method: "none", grant_types: ["authorization_code"], response_types: ["code"], ...addresses }];
    await start(keys);
    return "registered";
  },
  lifetime: (seconds) => {
    lifetime = Number(seconds);
    return "changed";
  },
  format: (name) => {
    format = name;
    return "changed";
  },
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
