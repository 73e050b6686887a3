// The permissions of the user: the scopes of the token, which `GET /me` returns, and the roles for the plants of other owners.

import { load, remove, store } from "./storage.js";
import { listed } from "./text.js";

const ME_KEY = "plantstore-me";
/// Time before the end of a token, in milliseconds, from which the service renews it.
const RENEWAL_PERIOD = 14 * 86_400_000;

export class Permissions {
  /// The response of `GET /me`. It is stored with the token, so that a reload shows it at once.
  #me = JSON.parse(load(ME_KEY) ?? "null");
  /// Roles by owner, as far as they are known: from `GET /shares` if the token may read that, and from rejected writes.
  #roles = new Map();
  /// Number of offers of other owners that the user can accept, as far as it is known.
  #offers = 0;

  learn(me) {
    this.#me = me;
    store(ME_KEY, JSON.stringify(me));
  }

  /// Replaces the roles and the number of offers by those of `GET /shares`.
  learnShares(received) {
    const accepted = received.filter(({ state }) => state === "accepted");
    this.#offers = received.length - accepted.length;
    this.#roles = new Map(accepted.map(({ owner, role }) => [owner, role]));
  }

  /// Records that a write was rejected because the user is only a reader of this owner's plants.
  learnRejection({ status, scope }, owner) {
    if (status === 403 && scope === null && owner !== undefined) this.#roles.set(owner, "reader");
  }

  /// Clears what the owners may have changed meanwhile.
  forgetRoles() {
    this.#roles.clear();
  }

  forget() {
    this.#me = null;
    this.#roles.clear();
    this.#offers = 0;
    remove(ME_KEY);
  }

  /// The name of the user; `null` before `learn`.
  get user() {
    return this.#me?.user ?? null;
  }

  get token() {
    return this.#me?.token ?? { scopes: [] };
  }

  get offers() {
    return this.#offers;
  }

  /// Owners whose role is known.
  get owners() {
    return [...this.#roles.keys()];
  }

  /// Returns the other owners that are known, or have plants in the garden.
  otherOwners(garden) {
    const owners = new Set([...garden.owners(), ...this.owners]);
    owners.delete(this.user);
    return [...owners].sort();
  }

  has(scope) {
    return this.token.scopes.includes(scope);
  }

  /// True if the token ends soon. One of the issuer always does, and is replaced by signing in again.
  get isEnding() {
    return this.token.issuer === undefined && endsSoon(this.token);
  }

  /// Returns true if a token of the user ends soon, and its successor can have the same scopes and a later end.
  canRenew(token) {
    const { expires_at, issuer } = this.token;
    const isLonger = token.current || issuer !== undefined || !expires_at || new Date(expires_at) > new Date(token.expires_at);
    return endsSoon(token) && isLonger && token.scopes.every((scope) => this.has(scope));
  }

  get canAdd() {
    return this.has("plants:write");
  }

  canChange(owner) {
    return owner === this.user || this.#roles.get(owner) !== "reader";
  }

  canEdit({ owner }) {
    return this.canAdd && this.canChange(owner);
  }

  canDelete({ owner }) {
    return this.has("plants:delete") && this.canChange(owner);
  }

  /// Returns a sentence about what is not allowed; "" if nothing is known to be forbidden.
  describe() {
    if (this.#me === null) return "";
    const verbs = [[this.canAdd, "add or edit"], [this.has("plants:delete"), "delete"]].filter(([allowed]) => !allowed).map(([, verb]) => verb);
    const scopes = verbs.length === 2 ? "This token cannot add, edit or delete plants." : verbs.map((verb) => `This token cannot ${verb} plants.`).join("");
    const owners = this.owners.filter((owner) => !this.canChange(owner)).sort();
    const roles = owners.length > 0 ? `You can read the plants of ${listed(owners)}, not change them.` : "";
    return [scopes, roles].filter(Boolean).join(" ");
  }
}

function endsSoon({ expires_at }) {
  return Boolean(expires_at) && new Date(expires_at) - Date.now() <= RENEWAL_PERIOD;
}
