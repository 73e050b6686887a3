// The plants that are not loaded: they are counted, and the server finds them by their tag or their id.

import { plantOf } from "./garden.js";
import { isId } from "./rules.js";

/// Maximum number of plants that are counted.
const COUNTED_MAX = 200_000;
/// Maximum number of plants with a tag that are loaded.
const TAGGED_MAX = 10_000;
/// Pause in milliseconds before a search, in which the user may go on typing.
const SEARCH_DELAY = 300;
/// Maximum number of owners to ask for.
const SEARCHED_OWNERS_MAX = 10;

export class Rest {
  #count = null;
  /// The tag and the owner whose plants are all loaded.
  #complete = null;
  #timer;

  /// The `number` of plants as far as they are counted, and whether it `isExact`; `null` if all plants are loaded.
  get count() {
    return this.#count;
  }

  /// Returns true if all plants that can match the filter are loaded.
  hasAll({ tag, owner }) {
    return this.#count === null || (this.#complete?.tag === tag && [null, owner].includes(this.#complete.owner));
  }

  /// Counts the plants from this page of the list on, except those that are loaded. `onChange` returns false to end.
  async countFrom(api, page, loaded, onChange) {
    this.#count = { number: -loaded, isExact: false };
    if (!onChange()) return;
    for await (const { number, hasNext } of api.counts(page)) {
      this.#add(number, !hasNext);
      if (!onChange() || this.#count === null || this.#count.number >= COUNTED_MAX) return;
    }
  }

  /// Records that some of them are loaded now.
  take(number) {
    this.#add(-number, this.#count?.isExact);
  }

  /// Returns the plants with the tag of the filter, or those of these owners whose id is the query. No tag cannot be searched for.
  async find(api, { query, tag, owner }, owners) {
    const found = tag ? await this.#withTag(api, tag, owner) : [];
    const id = query.trim();
    if (this.#complete?.tag === tag || !isId(id)) return found;
    const asked = owners.slice(0, SEARCHED_OWNERS_MAX).map((one) => api.plant({ id: String(BigInt(id)), owner: one }).catch(() => null));
    return [...found, ...(await Promise.all(asked)).filter(Boolean).map(plantOf)];
  }

  /// Calls `onFound` with the result of `find`, after a pause in which no other search begins.
  findSoon(api, filter, owners, onFound) {
    clearTimeout(this.#timer);
    if (this.hasAll(filter) || !(filter.tag || isId(filter.query.trim()))) return;
    const wanted = { ...filter };
    // A failure leaves the list as it is, with the number of plants that were not searched.
    this.#timer = setTimeout(() => this.find(api, wanted, owners).then(onFound, () => {}), SEARCH_DELAY);
  }

  async #withTag(api, tag, owner) {
    const found = [];
    for await (const { plants, next } of api.pages({ tag, owner })) {
      found.push(...plants.map(plantOf));
      if (next && found.length >= TAGGED_MAX) return found;
    }
    this.#complete = { tag, owner };
    return found;
  }

  #add(number, isExact) {
    if (this.#count === null) return;
    const sum = this.#count.number + number;
    this.#count = isExact && sum <= 0 ? null : { number: sum, isExact };
  }
}
