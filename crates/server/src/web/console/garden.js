// The loaded plants, in the order of the server: filtered, sorted and counted.

/// The largest id to suggest: clients that read ids as floating-point numbers change larger ones.
const LARGEST_SUGGESTED = BigInt(Number.MAX_SAFE_INTEGER);
const byName = new Intl.Collator(undefined, { sensitivity: "base", numeric: true });

/// Returns a plant with a key and a search text.
export function plantOf({ id, name, tag, owner }) {
  const text = `${name}\n${tag ?? ""}\n${id}`.toLowerCase();
  // Owner names have no spaces, so the key is unique.
  return { id, number: BigInt(id), name, tag, owner, key: `${owner} ${id}`, text };
}

/// Returns the known plant if it is the same, so that what has not changed can be recognised, or else the new one.
export function knownOr(known, plant) {
  return known && known.name === plant.name && known.tag === plant.tag ? known : plant;
}

function inOrder(one, other) {
  if (one.number !== other.number) return one.number < other.number ? -1 : 1;
  return one.owner < other.owner ? -1 : 1;
}

export class Garden {
  /// Plants by key, in the order of the list.
  #plants = new Map();
  #sorted = new Map();

  get size() {
    return this.#plants.size;
  }

  get(key) {
    return this.#plants.get(key);
  }

  /// Appends a page of the list.
  append(plants) {
    for (const plant of plants) this.#plants.set(plant.key, plant);
    this.#sorted.clear();
  }

  /// Inserts plants in the order of the list; each replaces the one with its key.
  add(...plants) {
    const added = new Map(plants.map((plant) => [plant.key, plant]));
    const others = [...this.#plants.values()].filter(({ key }) => !added.has(key));
    // Both are sorted already, so they are merged in linear time.
    this.#plants = new Map([...others, ...added.values()].sort(inOrder).map((plant) => [plant.key, plant]));
    this.#sorted.clear();
  }

  remove(key) {
    this.#plants.delete(key);
    this.#sorted.clear();
  }

  /// Returns the plants that match the tag and the owner, if they are not `null`, and all words of the query.
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

  /// Returns each tag with the number of its plants, most used first; "" stands for no tag.
  tags() {
    const counts = new Map();
    for (const { tag = "" } of this.#plants.values()) counts.set(tag, (counts.get(tag) ?? 0) + 1);
    return [...counts].sort(([one, few], [other, many]) => many - few || byName.compare(one, other));
  }

  owners() {
    const owners = new Set();
    for (const { owner } of this.#plants.values()) owners.add(owner);
    return [...owners].sort(byName.compare);
  }

  /// Returns an id that no loaded plant of the owner has, and none with a pending deletion: one more than the largest, or the
  /// smallest that is free.
  freeId(wanted, pending) {
    let largest = 0n;
    const taken = new Set();
    for (const { number, owner } of [...this.#plants.values(), ...pending]) {
      if (owner !== wanted) continue;
      if (number > largest) largest = number;
      taken.add(number);
    }
    if (largest < LARGEST_SUGGESTED) return String(largest + 1n);
    let free = 1n;
    while (taken.has(free)) free += 1n;
    return String(free);
  }
}
