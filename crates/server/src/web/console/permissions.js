// The permissions of the token, as far as responses have shown them: the API has no operation that lists them. Until a response
// shows otherwise, everything is offered.

import { load, remove, store } from "./storage.js";
import { listed } from "./text.js";

const KEY = "plantstore-permissions";

export class Permissions {
  /// Scopes that the token lacks. They never change, so they are stored with the token.
  #missingScopes = new Set();
  /// Owners whose plants the user can read but not change. The operator can change that at any time.
  #readOnlyOwners = new Set();
  /// The name of the user; `null` until a list has shown it.
  #user = null;

  constructor() {
    const { missingScopes = [], user = null } = JSON.parse(load(KEY) ?? "{}");
    this.#missingScopes = new Set(missingScopes);
    this.#user = user;
  }

  get user() {
    return this.#user;
  }

  learnUser(name) {
    this.#user = name;
    this.#store();
  }

  /// Records that a write was rejected for lack of a scope, or of the role `editor` for this owner.
  learnRejection({ status, scope }, owner) {
    if (status !== 403) return;
    if (scope !== null) this.#missingScopes.add(scope);
    else if (owner !== undefined) this.#readOnlyOwners.add(owner);
    this.#store();
  }

  /// Clears what the operator may have changed meanwhile.
  forgetRoles() {
    this.#readOnlyOwners.clear();
  }

  forget() {
    this.#missingScopes.clear();
    this.#readOnlyOwners.clear();
    this.#user = null;
    remove(KEY);
  }

  get canAdd() {
    return !this.#missingScopes.has("plants:write");
  }

  get hasScopeToDelete() {
    return !this.#missingScopes.has("plants:delete");
  }

  canChange(owner) {
    return !this.#readOnlyOwners.has(owner);
  }

  canDelete({ owner }) {
    return this.hasScopeToDelete && this.canChange(owner);
  }

  /// Returns a sentence about what is not allowed; "" if nothing is known to be forbidden.
  describe() {
    const verbs = [[this.canAdd, "add"], [this.hasScopeToDelete, "delete"]].filter(([allowed]) => !allowed).map(([, verb]) => verb);
    const scopes = verbs.length === 2 ? "This token can neither add nor delete plants." : verbs.map((verb) => `This token cannot ${verb} plants.`).join("");
    const owners = [...this.#readOnlyOwners].sort();
    const roles = owners.length > 0 ? `You can read the plants of ${listed(owners)}, not change them.` : "";
    return [scopes, roles].filter(Boolean).join(" ");
  }

  #store() {
    store(KEY, JSON.stringify({ missingScopes: [...this.#missingScopes], user: this.#user }));
  }
}
