// The plants that are selected to be deleted together, by their keys.

export class Selection {
  #keys = new Set();
  #range = [];
  #isOn = false;
  #start = null;
  #onChange;

  constructor(onChange) {
    this.#onChange = onChange;
  }

  /// True while plants are being selected, also if none is selected yet.
  get isOn() {
    return this.#isOn;
  }

  get size() {
    return this.#keys.size;
  }

  /// The key of the plant where a range starts; `null` before the first.
  get start() {
    return this.#start;
  }

  has(key) {
    return this.#keys.has(key);
  }

  begin() {
    this.#isOn = true;
    this.#onChange();
  }

  end() {
    if (!this.#isOn) return;
    this.#keys.clear();
    [this.#isOn, this.#start, this.#range] = [false, null, []];
    this.#onChange();
  }

  /// Selects a plant or deselects it; one that `canSelect` is false for stays as it is.
  toggle(key, canSelect) {
    if (canSelect && !this.#keys.delete(key)) this.#keys.add(key);
    [this.#start, this.#range] = [key, []];
    this.begin();
  }

  add(keys) {
    for (const key of keys) this.#keys.add(key);
    this.begin();
  }

  /// Selects a range in place of the one that started at the same plant.
  setRange(start, keys) {
    if (start === this.#start) for (const key of this.#range) this.#keys.delete(key);
    [this.#start, this.#range] = [start, keys];
    this.add(keys);
  }

  /// Deselects the plants for which `isKept` returns false.
  keep(isKept) {
    const gone = [...this.#keys].filter((key) => !isKept(key));
    for (const key of gone) this.#keys.delete(key);
    if (gone.length > 0) this.#onChange();
  }
}
