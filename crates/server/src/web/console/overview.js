// The controls around the plants: counts, owners, filters, and the message if no plant is shown.

import { byId } from "./dom.js";
import { drawingOf } from "./drawing.js";
import { count, listed } from "./text.js";

/// Maximum number of tags shown, at first and after a click on "All tags".
const FEW_TAGS = 12;
const MANY_TAGS = 100;
/// Owners named above the list.
const OWNERS_NAMED = 3;

export class Overview {
  #onFilter;
  #actions;
  #allTags = false;
  /// The chips that are shown, as text.
  #shownTags = "";
  #state = null;

  /// `onFilter` is called with changes of the filter; `actions` are offered if no plant is shown: `add`, `clear`, `again` and
  /// `leave`.
  constructor({ onFilter, actions }) {
    this.#onFilter = onFilter;
    this.#actions = actions;
  }

  /// Resets the view for another user.
  reset() {
    this.#allTags = false;
  }

  /// `state` has the `garden`, the number of plants `found` in it by the `filter`, the number `unsearched` (see `unsearchedOf`), the number
  /// `searched` on the server without loading them,
  /// the `failure` of the list, the `permissions`, and whether the list `isReading`, for the first time (`isFirst`) or again.
  render(state) {
    this.#state = state;
    const { garden, isReading, permissions, failure } = state;
    this.#renderCount();
    this.#renderOwners();
    this.#renderTags();
    byId("rights").textContent = permissions.describe();
    byId("progress").hidden = !isReading;
    const isEmpty = garden.size === 0 && !isReading;
    document.querySelector(".finding").hidden = isEmpty;
    this.#renderNothing();
    // An empty list has its own button to add a plant, in the middle of the page.
    byId("add").hidden = !permissions.canAdd || (isEmpty && !failure);
  }

  #renderCount() {
    const { garden, found, unsearched, searched, failure, isReading, isFirst } = this.#state;
    const known = garden.size + (searched?.number ?? 0);
    const least = searched && !searched.isExact ? "at least " : "";
    const total = least + count(known, "plant") + (isReading && isFirst ? " so far…" : "");
    const isFiltered = found !== known;
    const counted = isFiltered ? `${found.toLocaleString("en")} of ${total}` : total;
    const rest = unsearchedOf(unsearched, isFiltered ? "not searched" : "not shown and not searched");
    const text = failure ? "" : [counted, rest].filter(Boolean).join(". ");
    // Screen readers announce a change.
    if (byId("count").textContent !== text) byId("count").textContent = text;
  }

  #renderOwners() {
    const { garden, filter } = this.#state;
    const owners = garden.owners();
    byId("owners").textContent = ownersOf(owners);
    const { owner: chosen } = filter;
    // An owner who is selected and has no plants any more stays in the menu, so that the user can deselect it.
    const offered = chosen === null || owners.includes(chosen) ? owners : [...owners, chosen];
    byId("owner-choice").hidden = owners.length < 2 && chosen === null;
    setOptions(byId("owner"), [["Everybody", ""], ...offered.map((owner) => [owner, owner])], chosen ?? "");
  }

  #renderTags() {
    const { garden, filter, unsearched } = this.#state;
    const tags = garden.tags();
    const most = this.#allTags ? MANY_TAGS : FEW_TAGS;
    const shown = tags.slice(0, most);
    const { tag: chosen } = filter;
    const isHidden = chosen !== null && !shown.some(([tag]) => tag === chosen);
    if (isHidden) shown.push(tags.find(([tag]) => tag === chosen) ?? [chosen, 0]);
    // A word that is no tag of a loaded plant may be one of the others.
    const word = filter.query.trim();
    const asked = unsearched && word && !shown.some(([tag]) => tag === word) ? word : null;
    byId("tags").hidden = tags.length === 0 || (tags.length === 1 && tags[0][0] === "" && chosen === null && asked === null);
    // Chips that stay the same are not replaced: one of them may be just being pressed.
    const text = JSON.stringify([shown, chosen, asked, tags.length, this.#allTags]);
    if (text === this.#shownTags) return;
    this.#shownTags = text;
    const focused = document.activeElement?.closest?.(".chip")?.dataset.tag;
    const chips = shown.map(([tag, number]) => this.#chip(tag, number));
    if (tags.length > FEW_TAGS) chips.push(this.#moreChip(tags.length));
    if (asked !== null) chips.push(this.#askChip(asked));
    byId("tags").replaceChildren(...chips);
    if (focused !== undefined) chips.find(({ dataset }) => dataset.tag === focused)?.focus();
  }

  #chip(tag, number) {
    const { tag: chosen } = this.#state.filter;
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.dataset.tag = tag;
    chip.setAttribute("aria-pressed", String(tag === chosen));
    const [name, amount] = [document.createElement("span"), document.createElement("span")];
    name.dir = "auto";
    name.className = "chip-name";
    name.textContent = tag || "no tag";
    amount.className = "amount";
    amount.textContent = number.toLocaleString("en");
    chip.append(name, " ", amount);
    chip.addEventListener("click", () => this.#onFilter({ tag: tag === chosen ? null : tag }));
    return chip;
  }

  /// Returns a chip that asks the server for all plants with this tag.
  #askChip(tag) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip more";
    chip.dataset.tag = tag;
    chip.textContent = `All plants with the tag “${tag}”`;
    chip.addEventListener("click", () => {
      byId("query").value = "";
      this.#onFilter({ query: "", tag });
    });
    return chip;
  }

  #moreChip(number) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip more";
    chip.dataset.tag = "\n";
    chip.setAttribute("aria-expanded", String(this.#allTags));
    const more = number > MANY_TAGS ? `The ${MANY_TAGS} most used of ${number.toLocaleString("en")} tags` : `All ${number} tags`;
    chip.textContent = this.#allTags ? "Fewer tags" : more;
    chip.addEventListener("click", () => {
      this.#allTags = !this.#allTags;
      this.#renderTags();
    });
    return chip;
  }

  #renderNothing() {
    const { found, isReading } = this.#state;
    byId("nothing").hidden = found > 0 || isReading;
    if (byId("nothing").hidden) return;
    const { title, text, action } = nothingOf(this.#state);
    const labels = { add: "Add a plant", clear: "Show all plants", again: "Try again", leave: "Use another token" };
    byId("nothing-title").textContent = title;
    byId("nothing-text").textContent = text;
    byId("nothing-action").textContent = labels[action];
    byId("nothing-action").onclick = this.#actions[action];
    byId("nothing").querySelector(".drawing").replaceChildren(drawingOf({ name: action, tag: "" }));
  }
}

function ownersOf(owners) {
  if (owners.length === 0) return "";
  const more = owners.length - OWNERS_NAMED;
  const named = more > 0 ? [...owners.slice(0, OWNERS_NAMED), `${more} more`] : owners;
  return `${owners.length === 1 ? "Owner" : "Owners"}: ${listed(named)}`;
}

/// Returns a sentence about the plants beyond those that are loaded: `null` for none, else their number as far as it is known.
function unsearchedOf(unsearched, state) {
  if (unsearched === null) return "";
  const { number, isExact } = unsearched;
  if (number <= 0) return `There are more: they are ${state}.`;
  const amount = `${number.toLocaleString("en")} more ${number === 1 ? "is" : "are"} ${state}.`;
  return isExact ? amount : `At least ${amount}`;
}

/// Returns the message and the action to offer if no plant is shown.
function nothingOf({ failure, garden, filter: { query, tag }, unsearched, permissions }) {
  if (failure) return { title: "The plants cannot be shown", text: failure.message, action: failure.status === 403 ? "leave" : "again" };
  if (garden.size === 0) {
    const title = "Nothing planted yet";
    return permissions.canAdd ? { title, text: "The first plant is one name away.", action: "add" } : { title, text: permissions.describe(), action: "leave" };
  }
  const what = query.trim() ? `“${query.trim()}”` : "this";
  const where = tag === null ? "" : ` among ${tag ? `“${tag}”` : "those without a tag"}`;
  const text = ["Names, tags and ids are searched.", unsearchedOf(unsearched, "not searched")].filter(Boolean).join(" ");
  return { title: `No plant matches ${what}${where}`, text, action: "clear" };
}

/// Updates a select only if it differs, so that an open menu stays open.
function setOptions(select, options, value) {
  const now = [...select.options].map(({ text, value: known }) => [text, known]);
  if (JSON.stringify(now) !== JSON.stringify(options)) select.replaceChildren(...options.map(([text, known]) => new Option(text, known)));
  select.value = value;
}
