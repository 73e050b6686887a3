// The plants that are not loaded: they are counted, and found by their id.

import { plantOf } from "./garden.js";
import { isId } from "./rules.js";

/// Maximum number of plants that are counted.
const COUNTED_MAX = 200_000;
/// Pause in milliseconds before a number that is typed is searched for.
const SEARCH_DELAY = 300;
/// Maximum number of owners to ask for.
const SEARCHED_OWNERS_MAX = 10;

export class Rest {
  #count = null;
  #timer;

  /// The `number` of plants as far as they are counted, and whether it `isExact`; `null` if all plants are loaded.
  get count() {
    return this.#count;
  }

  /// Counts the plants from this page of the list on. `onChange` returns false to end.
  async countFrom(api, page, onChange) {
    this.#count = { number: 0, isExact: false };
    if (!onChange()) return;
    for await (const { number, hasNext } of api.counts(page)) {
      this.#add(number, !hasNext);
      if (!onChange() || this.#count === null || this.#count.number >= COUNTED_MAX) return;
    }
  }

  /// Records that one of them is loaded now.
  take() {
    this.#add(-1, this.#count?.isExact);
  }

  /// Calls `onFound` with the plants of these owners whose id is the query, after a pause in which no other search begins.
  searchSoon(api, query, owners, onFound) {
    clearTimeout(this.#timer);
    const id = query.trim();
    if (this.#count === null || !isId(id)) return;
    this.#timer = setTimeout(async () => {
      const asked = owners.slice(0, SEARCHED_OWNERS_MAX).map((owner) => api.plant({ id: String(BigInt(id)), owner }).catch(() => null));
      onFound((await Promise.all(asked)).filter(Boolean).map(plantOf));
    }, SEARCH_DELAY);
  }

  #add(number, isExact) {
    if (this.#count === null) return;
    const sum = this.#count.number + number;
    this.#count = isExact && sum <= 0 ? null : { number: sum, isExact };
  }
}
