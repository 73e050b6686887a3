// The plants as they are known here: kept in the order of the server, found, sorted and counted.

const LARGEST_ID = 2n ** 63n - 1n;
const byName = new Intl.Collator(undefined, { sensitivity: "base", numeric: true });

/// A plant of a list, ready to be found. `owner` is missing for one that was just added among the caller's own.
export function plantOf({ id, name, tag, owner }) {
  const text = `${name}\n${tag ?? ""}\n${id}`.toLowerCase();
  // The owner's name has no spaces, and so no two plants share a key.
  return { id, number: BigInt(id), name, tag, owner, key: `${owner ?? ""} ${id}`, text };
}

function inOrder(one, other) {
  if (one.number !== other.number) return one.number < other.number ? -1 : 1;
  return (one.owner ?? "") < (other.owner ?? "") ? -1 : 1;
}

export class Garden {
  /// By key, in the order of the list.
  #plants = new Map();
  #sorted = new Map();

  get size() {
    return this.#plants.size;
  }

  get(key) {
    return this.#plants.get(key);
  }

  /// The plants that were added here and are not in a list of the server yet: their owner has no name.
  unlisted() {
    return [...this.#plants.values()].filter(({ owner }) => owner === undefined);
  }

  /// The plants with this id, each of another owner.
  withId(number) {
    return [...this.#plants.values()].filter((plant) => plant.number === number);
  }

  /// Appends what a page of the list brought.
  append(plants) {
    for (const plant of plants) this.#plants.set(plant.key, plant);
    this.#sorted.clear();
  }

  /// Puts one where it belongs.
  add(plant) {
    const plants = [...this.#plants.values()].filter((known) => known.key !== plant.key);
    const after = plants.findIndex((known) => inOrder(plant, known) < 0);
    plants.splice(after < 0 ? plants.length : after, 0, plant);
    this.#plants = new Map(plants.map((known) => [known.key, known]));
    this.#sorted.clear();
  }

  remove(key) {
    this.#plants.delete(key);
    this.#sorted.clear();
  }

  /// The plants that have the tag and the owner, if one is asked for, and all of the words.
  select({ query, tag, owner, sort }) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return this.#sortedBy(sort).filter((plant) => {
      if (tag !== null && (plant.tag ?? "") !== tag) return false;
      if (owner !== null && plant.owner !== owner) return false;
      return words.every((word) => plant.text.includes(word));
    });
  }

  #sortedBy(sort) {
    let plants = this.#sorted.get(sort);
    if (!plants) {
      plants = [...this.#plants.values()];
      if (sort.endsWith("name")) plants.sort((one, other) => byName.compare(one.name, other.name) || inOrder(one, other));
      if (sort.startsWith("-")) plants.reverse();
      this.#sorted.set(sort, plants);
    }
    return plants;
  }

  /// Each tag with the number of its plants, the most used first; "" stands for none.
  tags() {
    const counts = new Map();
    for (const { tag = "" } of this.#plants.values()) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    return [...counts].sort(([one, few], [other, many]) => many - few || byName.compare(one, other));
  }

  owners() {
    const owners = new Set();
    for (const { owner } of this.#plants.values()) if (owner !== undefined) owners.add(owner);
    return [...owners].sort(byName.compare);
  }

  /// An id that no plant in sight has, whoever owns it, and none of those that are still to be deleted: one more than the
  /// largest, if there is such.
  freeId(leaving) {
    let largest = 0n;
    const taken = new Set();
    for (const { number } of [...this.#plants.values(), ...leaving]) {
      if (number > largest) largest = number;
      taken.add(number);
    }
    if (largest < LARGEST_ID) return String(largest + 1n);
    let free = 1n;
    while (taken.has(free)) free += 1n;
    return String(free);
  }
}
