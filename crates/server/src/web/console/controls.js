// The controls of the page: their events, the keyboard shortcuts, and the choice between the plants and the Access page.

import { byId } from "./dom.js";
import { count } from "./text.js";

const PAGES = ["plants", "access"];

/// Shows one of the pages, and in the header the user and the number of offers to the user.
export function showPage(page, user, offers) {
  for (const other of PAGES) byId(`${other}-page`).hidden = other !== page;
  const isAccess = page === "access";
  byId("skip").textContent = isAccess ? "Skip to the content" : "Skip to the plants";
  document.title = isAccess ? "Access · plantstore" : "plantstore";
  byId("user").textContent = user;
  byId("offer-count").textContent = offers || "";
  const waiting = offers > 0 ? `, ${count(offers, "offer")} waiting` : "";
  byId("to-access").setAttribute("aria-label", `Access, signed in as ${user}${waiting}`);
  if (isAccess) byId("to-access").setAttribute("aria-current", "page");
  else byId("to-access").removeAttribute("aria-current");
}

/// Shows the bar for the plants that are selected, while plants are being selected.
export function showSelection(isOn, size) {
  byId("selection").hidden = !isOn;
  byId("plants").classList.toggle("selecting", isOn);
  byId("select").setAttribute("aria-pressed", String(isOn));
  byId("selection-count").textContent = size === 0 ? "Choose plants" : `${size.toLocaleString("en")} selected`;
  byId("selection-delete").setAttribute("aria-disabled", String(size === 0));
}

/// Focuses what the page is about.
export function focusContent() {
  const plants = byId("plants").hidden ? "nothing-action" : "plants";
  byId(byId("plants-page").hidden ? "access-title" : plants).focus();
}

/// Calls an action for each event; `canAdd` is asked before a shortcut adds a plant, `focusFirst` returns false without plants, and `isBusy`
/// true if closing the page would lose something.
export function listen(actions) {
  const onClick = (id, action) => byId(id).addEventListener("click", action);
  const buttons = { add: "add", refresh: "refresh", keys: "keys", "sign-out": "signOut", "try-now": "tryNow", renew: "renew", select: "select" };
  const ofSelection = { "selection-all": "selectAll", "selection-delete": "deleteSelected", "selection-end": "select" };
  for (const [id, action] of Object.entries({ ...buttons, ...ofSelection })) onClick(id, () => actions[action]());
  for (const view of ["cards", "table"]) onClick(`as-${view}`, () => actions.view(view));
  const onLink = (id, action) => {
    onClick(id, (event) => {
      // The fragment of the URL has the page and the filter.
      event.preventDefault();
      action();
    });
  };
  onLink("skip", () => focusContent());
  for (const page of PAGES) {
    onLink(`to-${page}`, () => {
      actions.go(page);
      byId(`${page}-title`).focus();
    });
  }
  byId("query").addEventListener("input", ({ target }) => actions.filter({ query: target.value }));
  byId("sort").addEventListener("change", ({ target }) => actions.filter({ sort: target.value }));
  byId("owner").addEventListener("change", ({ target }) => actions.filter({ owner: target.value || null }));
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.addEventListener("close", () => {
      // The button that opened it may have been hidden or replaced meanwhile.
      const { activeElement } = document;
      if (!byId("garden").hidden && (activeElement === document.body || !activeElement.checkVisibility())) focusContent();
    });
  }
  addEventListener("keydown", (event) => onKey(event, actions));
  addEventListener("online", () => actions.tryNow());
  document.addEventListener("visibilitychange", () => actions.return());
  addEventListener("focus", () => actions.return());
  addEventListener("pagehide", () => actions.leave());
  addEventListener("beforeunload", (event) => actions.isBusy() && event.preventDefault());
  addEventListener("pageshow", ({ persisted }) => persisted && actions.restore());
  const controls = document.querySelector(".controls");
  const onStuck = ([{ intersectionRatio }]) => controls.classList.toggle("stuck", intersectionRatio < 1);
  new IntersectionObserver(onStuck, { threshold: 1, rootMargin: "-1px 0px 0px" }).observe(controls);
}

function onKey(event, actions) {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (byId("garden").hidden || event.altKey) return;
  if (event.key === "Escape" && event.target === byId("query")) {
    byId("query").value = "";
    return actions.filter({ query: "" });
  }
  if (event.key === "ArrowDown" && leadsToPlants(event.target) && actions.focusFirst()) return event.preventDefault();
  if (typing) return;
  if (event.key === "Escape" && !byId("selection").hidden) return actions.select();
  const isUndo = event.key === "z" && (event.ctrlKey || event.metaKey);
  if (isUndo ? !actions.undo() : event.ctrlKey || event.metaKey) return;
  const isPlants = !byId("plants-page").hidden;
  if (event.key === "?") actions.keys();
  else if (event.key === "/" && isPlants) byId("query").focus();
  else if (event.key === "n" && isPlants && actions.canAdd()) actions.add();
  else if (!isUndo) return;
  event.preventDefault();
}

/// Returns true if the arrow key leads from here to the first plant. On a page that is scrolled, it scrolls.
function leadsToPlants(target) {
  if (byId("plants-page").hidden || document.querySelector("dialog[open]")) return false;
  return ["query", "skip", "plants"].some((id) => target === byId(id)) || ([document.body, byId("garden")].includes(target) && scrollY === 0);
}
