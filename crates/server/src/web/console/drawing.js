// Draws a picture of a plant. Its kind and shape are derived from the plant's name, its background from the tag, so that the same
// plant always looks the same. Colours are in style.css; a drawing sets hues.

const SVG = "http://www.w3.org/2000/svg";
const UP = -Math.PI / 2;
/// The point where stems leave the pot.
const GROUND = { x: 60, y: 88 };

/// FNV-1a hash, which spreads similar names over all kinds.
function hash(text) {
  let bits = 0x811c9dc5;
  for (const character of text) bits = Math.imul(bits ^ character.codePointAt(0), 0x01000193);
  return bits >>> 0;
}

/// Returns a pseudo-random number generator for numbers from 0 to 1 (mulberry32).
function numbers(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/// Hues that go well with leaves: sage, clay, straw, sky, ochre, sand, moss, heather, rose, dusk, pond, mint.
const TAG_HUES = [142, 46, 104, 228, 68, 86, 122, 300, 28, 262, 196, 165];

/// Returns the background hue for a tag.
export function hueOf(tag) {
  return tag ? TAG_HUES[hash(tag) % TAG_HUES.length] : 118;
}

/// Collects outlines by kind, so that a drawing has few SVG paths, however many leaves it has.
class Pen {
  outlines = { stem: "", shade: "", leaf: "", vein: "", bloom: "", heart: "" };
  random;

  constructor(seed) {
    this.random = numbers(seed);
  }

  between(least, most) {
    return least + (most - least) * this.random();
  }

  draw(what, outline) {
    this.outlines[what] += outline;
  }

  stem(from, bend, to) {
    this.draw("stem", `M${point(from)}Q${point(bend)} ${point(to)}`);
  }

  /// Draws a leaf with its vein, from a point in a direction.
  leaf(from, angle, length, width, what = "leaf") {
    const at = (along, aside) => ({
      x: from.x + Math.cos(angle) * length * along - Math.sin(angle) * width * aside,
      y: from.y + Math.sin(angle) * length * along + Math.cos(angle) * width * aside,
    });
    const [one, other] = [`${point(at(0.25, 0.62))} ${point(at(0.72, 0.5))}`, `${point(at(0.72, -0.5))} ${point(at(0.25, -0.62))}`];
    this.draw(what, `M${point(from)}C${one} ${point(at(1, 0))}C${other} ${point(from)}Z`);
    if (what !== "bloom") this.draw("vein", `M${point(at(0.08, 0))}L${point(at(0.84, 0))}`);
  }

  disc({ x, y }, radius, what = "leaf") {
    this.draw(what, `M${point({ x: x - radius, y })}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0`);
  }
}

function point({ x, y }) {
  return `${x.toFixed(1)} ${y.toFixed(1)}`;
}

function towards(from, angle, length) {
  return { x: from.x + Math.cos(angle) * length, y: from.y + Math.sin(angle) * length };
}

/// Returns the point at the fraction `at` of a bent stem (a quadratic Bézier curve).
function along(from, bend, to, at) {
  const mix = (a, b, c) => (1 - at) ** 2 * a + 2 * at * (1 - at) * b + at ** 2 * c;
  return { x: mix(from.x, bend.x, to.x), y: mix(from.y, bend.y, to.y) };
}

/// One stem with pairs of leaves; many small ones make a fern.
function sprig(pen, pairs, leafLength, leafWidth) {
  const lean = pen.between(-14, 14);
  const tip = { x: 60 + lean, y: pen.between(20, 28) };
  const bend = { x: 60 - lean, y: 52 };
  pen.stem(GROUND, bend, tip);
  for (let pair = 0; pair < pairs; pair += 1) {
    const at = 0.22 + (0.7 * pair) / pairs;
    const from = along(GROUND, bend, tip, at);
    const size = 1 - 0.5 * (pair / pairs);
    for (const side of [-1, 1]) {
      const angle = UP + side * pen.between(0.75, 1.05);
      pen.leaf(from, angle, leafLength * size, leafWidth * size, side < 0 ? "shade" : "leaf");
    }
  }
  pen.leaf(along(GROUND, bend, tip, 0.94), UP + lean / 60, leafLength * 0.62, leafWidth * 0.6);
}

/// Blades that rise from the pot.
function blades(pen) {
  const count = 5 + Math.floor(pen.between(0, 3));
  for (let blade = 0; blade < count; blade += 1) {
    const spread = (blade / (count - 1) - 0.5) * 1.5;
    const length = pen.between(46, 66) * (1 - Math.abs(spread) * 0.28);
    const from = { x: 60 + spread * 14, y: GROUND.y };
    pen.leaf(from, UP + spread * 0.85, length, pen.between(11, 15), blade % 2 ? "leaf" : "shade");
  }
}

/// Round leaves on thin stems.
function coins(pen) {
  const count = 7 + Math.floor(pen.between(0, 3));
  for (let coin = 0; coin < count; coin += 1) {
    const spread = (coin / (count - 1) - 0.5) * 2.3;
    const end = towards(GROUND, UP + spread, pen.between(36, 60) * (1 - Math.abs(spread) * 0.2));
    pen.stem(GROUND, { x: 60 + spread * 6, y: 62 }, end);
    pen.disc(end, pen.between(7, 10.5), coin % 2 ? "leaf" : "shade");
    pen.disc(end, 1.1, "vein");
  }
}

/// A succulent: rings of fleshy leaves that rest on the pot.
function rosette(pen) {
  const centre = { x: 60, y: 83 };
  for (const [leaves, length, what] of [[9, 40, "shade"], [7, 32, "leaf"], [5, 22, "shade"], [3, 13, "leaf"]]) {
    for (let leaf = 0; leaf < leaves; leaf += 1) {
      const angle = UP + (leaf / (leaves - 1) - 0.5) * 3 + pen.between(-0.06, 0.06);
      pen.leaf(centre, angle, length, length * 0.44, what);
    }
  }
}

/// A flower over two broad leaves.
function flower(pen) {
  const top = { x: 60 + pen.between(-8, 8), y: pen.between(34, 40) };
  pen.stem(GROUND, { x: 60 - (top.x - 60), y: 62 }, top);
  pen.leaf({ x: 60, y: 84 }, UP - pen.between(0.8, 1.1), 36, 17, "shade");
  pen.leaf({ x: 60, y: 84 }, UP + pen.between(0.8, 1.1), 34, 16);
  const petals = 5 + Math.floor(pen.between(0, 5));
  const turn = pen.between(0, 1);
  for (let petal = 0; petal < petals; petal += 1) {
    pen.leaf(top, turn + (petal * 2 * Math.PI) / petals, 20, 78 / petals, "bloom");
  }
  pen.disc(top, 5.5, "heart");
}

/// A column with arms, and a flower on top.
function cactus(pen) {
  const height = pen.between(46, 54);
  const column = (x, bottom, top, width) => {
    const half = width / 2;
    pen.draw("leaf", `M${point({ x: x - half, y: bottom })}V${(top + half).toFixed(1)}a${half} ${half} 0 0 1 ${width} 0V${bottom}Z`);
    for (const rib of [-0.22, 0.22]) pen.draw("vein", `M${point({ x: x + rib * width, y: bottom })}V${(top + half).toFixed(1)}`);
  };
  for (const [side, low] of [[-1, pen.between(60, 68)], [1, pen.between(52, 60)]]) {
    const x = 60 + side * 21;
    pen.draw("shade", `M${point({ x: 60, y: low })}H${x}v9H60Z`);
    column(x, low + 9, low - pen.between(12, 18), 9);
  }
  column(60, GROUND.y, GROUND.y - height, 20);
  const top = { x: 60, y: GROUND.y - height };
  for (const angle of [-0.7, 0, 0.7]) pen.leaf(top, UP + angle, 11, 8, "bloom");
}

/// Large leaves on bent stems.
function hearts(pen) {
  const count = 4 + Math.floor(pen.between(0, 2));
  for (let leaf = 0; leaf < count; leaf += 1) {
    const spread = (leaf / (count - 1) - 0.5) * 2;
    const end = towards(GROUND, UP + spread * 0.85, pen.between(30, 46) - Math.abs(spread) * 6);
    pen.stem(GROUND, { x: 60 + spread * 2, y: 64 }, end);
    pen.leaf(end, UP + spread * 1.25 + pen.between(-0.2, 0.2), pen.between(25, 30), pen.between(20, 25), leaf % 2 ? "leaf" : "shade");
  }
}

const POT = "M44 91h32l-4 20a5 5 0 0 1-5 4H53a5 5 0 0 1-5-4z";

const twig = (pen) => sprig(pen, 3, 30, 14);
const branch = (pen) => sprig(pen, 4, 25, 11);
const fern = (pen) => sprig(pen, 8, 21, 6);
/// Foliage that suits any plant.
const NEUTRAL = [twig, branch];

/// Names of plants of a known kind.
const KNOWN = [
  [/cact|barrel|saguaro|opuntia|prickly/, cactus],
  [/fern|palm|cedar|yarrow|dill|fennel/, fern],
  [/aloe|snake|agave|yucca|sansevieria|spider|grass|chive|zz plant|dracaena/, blades],
  [/pilea|money|pearls|nasturtium|clover/, coins],
  [/echeveria|sempervivum|succulent|houseleek|haworthia/, rosette],
  [/rose\b|dahlia|tulip|orchid|violet|dais|lily|sunflower|aster|peony|poppy|pansy|geranium|camellia/, flower],
  [/monstera|swiss cheese|pothos|philodendron|ivy|calathea|anthurium|fig\b|hosta/, hearts],
  [/basil|mint|jade|laurel|citrus|lemon|rubber/, twig],
  [/olive|rosemary|thyme|lavender|sage|willow|jasmine/, branch],
];

function kindOf(name, seed) {
  const known = KNOWN.find(([words]) => words.test(name.toLowerCase()));
  return known ? known[1] : NEUTRAL[seed % NEUTRAL.length];
}

function element(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/// Returns the drawing of a plant in its pot.
export function drawingOf({ name, tag }) {
  const seed = hash(name);
  const pen = new Pen(seed);
  kindOf(name, seed)(pen);
  const svg = element("svg", { viewBox: "0 0 120 115", class: "plant" });
  svg.style.setProperty("--leaf-hue", pen.between(132, 165).toFixed(0));
  svg.style.setProperty("--bloom-hue", pen.between(-40, 95).toFixed(0));
  svg.style.setProperty("--pot-hue", String(hueOf(tag)));
  for (const [what, outline] of Object.entries(pen.outlines)) {
    if (outline) svg.append(element("path", { class: what, d: outline }));
  }
  svg.append(element("path", { class: "pot", d: POT }));
  svg.append(element("rect", { class: "rim", x: 41, y: 85, width: 38, height: 8, rx: 3 }));
  return svg;
}
