// Sign-in with OpenID Connect: authorization code flow with PKCE, as a public client. The access token is for the API. Of the ID
// token, the claims that tie it to this sign-in are checked; its signature need not be, because it comes from the issuer itself over
// TLS (OpenID Connect Core 1.0, section 3.1.3.7).

import { settings } from "./settings.js";
import { load, remove, store } from "./storage.js";

/// Storage of the request that the issuer has not responded to yet.
const REQUEST_KEY = "plantstore-sign-in";
/// Storage of the issuer's endpoint for signing out; it exists while the token of this tab comes from the issuer.
const SIGNED_IN_KEY = "plantstore-signed-in";
const DISCOVERY = "/.well-known/openid-configuration";
const SCOPE = "openid plants:read plants:write plants:delete tokens:manage shares:manage";
/// Time limit of a request to the issuer in milliseconds.
const ISSUER_TIMEOUT = 20_000;

/// The host of the issuer that users can sign in with; `null` if there is none.
export const issuerHost = settings && new URL(settings.issuer).host;
export const issuerName = settings && (settings.name ?? issuerHost);

/// A failed sign-in. The message is for the user.
export class SignInError extends Error {}

/// Goes to the issuer's sign-in page.
export async function beginSignIn() {
  // Browsers offer hash functions only with HTTPS or on this machine.
  if (!crypto.subtle) throw new SignInError(`Signing in with ${issuerHost} needs a console that is served over HTTPS.`);
  const { authorization_endpoint, token_endpoint, end_session_endpoint } = await discover();
  const request = { state: randomText(), nonce: randomText(), verifier: randomText() };
  store(REQUEST_KEY, JSON.stringify({ ...request, fragment: location.hash, token_endpoint, end_session_endpoint }));
  const parameters = {
    response_type: "code",
    client_id: settings.clientId,
    redirect_uri: redirectUri(),
    scope: SCOPE,
    state: request.state,
    nonce: request.nonce,
    code_challenge: base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(request.verifier))),
    code_challenge_method: "S256",
  };
  if (settings.resource !== null) parameters.resource = settings.resource;
  location.assign(withParameters(authorization_endpoint, parameters));
}

/// Returns the issuer's response in the URL with the request that it belongs to, and removes both: the response from the URL and
/// the history, the request from the storage. Returns `null` if there is no response.
export function takeResponse() {
  const fields = new URLSearchParams(location.search);
  if (!settings || !fields.has("state") || !(fields.has("code") || fields.has("error"))) return null;
  const response = Object.fromEntries(fields);
  const request = JSON.parse(load(REQUEST_KEY) ?? "null");
  remove(REQUEST_KEY);
  const isExpected = request !== null && response.state === request.state;
  history.replaceState(null, "", location.pathname + (isExpected ? request.fragment : ""));
  return { response, request: isExpected ? request : null };
}

/// Exchanges the response for an access token.
export async function finishSignIn({ response, request }) {
  if (request === null) throw new SignInError("This sign-in has expired or was not started in this tab. Start again.");
  if (response.iss !== undefined && response.iss !== settings.issuer) throw new SignInError(`The response is not from ${issuerHost}. Start again.`);
  if (response.error === "access_denied") throw new SignInError(`The sign-in at ${issuerHost} was cancelled.`);
  if (response.error !== undefined) throw notSignedIn(response);
  const tokens = await requestTokens(response.code, request);
  checkIdToken(tokens.id_token, request.nonce);
  store(SIGNED_IN_KEY, JSON.stringify({ end_session_endpoint: request.end_session_endpoint }));
  return tokens.access_token;
}

/// Returns true if the stored token of this tab comes from the issuer.
export function isSignedInWithIssuer() {
  return load(SIGNED_IN_KEY) !== null;
}

/// Returns the URL that ends the session at the issuer; `null` if there is none. It has no `id_token_hint`, because a token does not
/// belong in an address.
export function logoutUrl() {
  const { end_session_endpoint } = JSON.parse(load(SIGNED_IN_KEY) ?? "{}");
  if (!end_session_endpoint) return null;
  return withParameters(end_session_endpoint, { client_id: settings.clientId, post_logout_redirect_uri: redirectUri() });
}

export function forgetSignIn() {
  remove(SIGNED_IN_KEY);
}

/// Fetches the issuer's endpoints. All must have the issuer's origin, to which the content security policy restricts requests.
async function discover() {
  const discovery = await fetchJson(settings.issuer.replace(/\/$/, "") + DISCOVERY);
  if (discovery.issuer !== settings.issuer) throw new SignInError(`${issuerHost} is set up with another name. Tell the operator of this service.`);
  const { origin } = new URL(settings.issuer);
  for (const name of ["authorization_endpoint", "token_endpoint", "end_session_endpoint"]) {
    if (discovery[name] === undefined && name === "end_session_endpoint") continue;
    if (!URL.canParse(discovery[name]) || new URL(discovery[name]).origin !== origin) {
      throw new SignInError(`${issuerHost} has no ${name} at its own address. Tell the operator of this service.`);
    }
  }
  return discovery;
}

async function requestTokens(code, { verifier, token_endpoint }) {
  const parameters = { grant_type: "authorization_code", client_id: settings.clientId, code, redirect_uri: redirectUri(), code_verifier: verifier };
  const body = new URLSearchParams(settings.resource === null ? parameters : { ...parameters, resource: settings.resource });
  const tokens = await fetchJson(token_endpoint, { method: "POST", body });
  if (typeof tokens.access_token !== "string" || typeof tokens.id_token !== "string") throw notSignedIn({ error: "no tokens" });
  return tokens;
}

/// Checks that the ID token is from the issuer, for this client, and for the request with this nonce.
function checkIdToken(token, nonce) {
  const claims = claimsOf(token);
  const isForUs = [claims.aud].flat().includes(settings.clientId);
  if (claims.iss !== settings.issuer || !isForUs || claims.nonce !== nonce) {
    throw new SignInError(`The response of ${issuerHost} does not belong to this sign-in. Start again.`);
  }
}

function claimsOf(token) {
  try {
    const payload = atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/"));
    return JSON.parse(new TextDecoder().decode(Uint8Array.from(payload, (character) => character.charCodeAt(0))));
  } catch {
    return {};
  }
}

async function fetchJson(url, options = {}) {
  let response, body;
  try {
    const signal = AbortSignal.timeout(ISSUER_TIMEOUT);
    response = await fetch(url, { cache: "no-store", credentials: "omit", redirect: "error", signal, ...options });
    body = await response.json();
  } catch {
    throw new SignInError(`${issuerHost} cannot be reached, or does not let this page in. Try again later, or tell the operator of this service.`);
  }
  if (body?.error === "invalid_grant") throw new SignInError("This sign-in has expired. Start again.");
  if (!response.ok || body === null || typeof body !== "object") throw notSignedIn(body ?? {});
  return body;
}

function notSignedIn({ error, error_description }) {
  const reason = [error, error_description].filter((text) => typeof text === "string").join(": ");
  return new SignInError(`${issuerHost} did not sign you in${reason ? ` (${reason})` : ""}.`);
}

/// The URL of the console, to which the issuer returns. It has to be registered there.
function redirectUri() {
  return `${location.origin}/`;
}

function withParameters(url, parameters) {
  const complete = new URL(url);
  for (const [name, value] of Object.entries(parameters)) complete.searchParams.set(name, value);
  return complete.href;
}

/// Returns 256 random bits as text.
function randomText() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
