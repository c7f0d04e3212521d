// A structure of atoms as a picture that turns with the pointer or the arrow keys. Loaded when there is one.
import { html, useEffect, useRef, useSignal } from "../lib.js";
import { drawn } from "../theme.js";

const SYMBOLS = ("X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe "
  + "Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og").split(" ");
// Colours that chemists expect; those of other elements follow from their number.
const COLOURS = { 1: "#e8e8e8", 6: "#606060", 7: "#3b58d8", 8: "#d92b2b", 9: "#55bb55", 11: "#a05fd6", 14: "#c8a06a", 15: "#e88a1a", 16: "#d8c020", 17: "#3fb83f", 26: "#cf6a33", 29: "#c77f4a", 78: "#b9bcd0", 79: "#e0b62a" };
const RADII = { 1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57, 15: 1.07, 16: 1.05, 17: 1.02 };
const radiusOf = (number) => RADII[number] ?? (number < 11 ? 0.8 : number < 37 ? 1.25 : 1.45);
const colourOf = (number) => COLOURS[number] ?? `hsl(${(number * 47) % 360} 45% 58%)`;
const MAX_ATOMS = 5000;
const MAX_BONDED = 600;
const SIZE = 300;

// As Hill writes it: C and H first, then the others by name.
export function formulaOf(numbers) {
  const counts = {};
  for (const number of numbers) counts[SYMBOLS[number] ?? "X"] = (counts[SYMBOLS[number] ?? "X"] ?? 0) + 1;
  const first = counts.C ? ["C", "H"] : [];
  const names = [...first.filter((name) => counts[name]), ...Object.keys(counts).filter((name) => !first.includes(name)).sort()];
  return names.map((name) => name + (counts[name] > 1 ? counts[name] : "")).join("");
}

function bondsOf(numbers, points) {
  if (numbers.length > MAX_BONDED) return [];
  const bonds = [];
  for (let one = 0; one < numbers.length; one += 1) {
    for (let other = 0; other < one; other += 1) {
      const reach = 1.2 * (radiusOf(numbers[one]) + radiusOf(numbers[other]));
      const [x, y, z] = [0, 1, 2].map((axis) => points[one][axis] - points[other][axis]);
      if (x * x + y * y + z * z < reach * reach) bonds.push([one, other]);
    }
  }
  return bonds;
}

const edges = [0, 1, 2, 3, 4, 5, 6, 7].flatMap((corner) => [1, 2, 4].filter((bit) => !(corner & bit)).map((bit) => [corner, corner | bit]));
const cornersOf = (cell) => [...Array(8).keys()].map((corner) => [0, 1, 2].map((axis) => [0, 1, 2].reduce((sum, side) => sum + (corner & (1 << side) ? cell[side][axis] : 0), 0)));

// `numbers`, `positions` and `cell`, which may be null, are plain lists.
export function AtomsView({ numbers, positions, cell }) {
  const canvas = useRef();
  const turn = useSignal([-0.4, 0.5]);
  const corners = cell && cell.flat().some(Boolean) ? cornersOf(cell) : [];
  const bonds = useRef(null);
  useEffect(() => {
    bonds.current ??= bondsOf(numbers, positions);
    draw(canvas.current, { numbers, positions, corners, bonds: bonds.current, turn: turn.value });
  }, [turn.value, drawn.value]);
  const by = (x, y) => (turn.value = [turn.value[0] + x, turn.value[1] + y]);
  const move = (event) => event.buttons & 1 && by(event.movementY / 120, event.movementX / 120);
  const keys = { ArrowLeft: [0, -0.15], ArrowRight: [0, 0.15], ArrowUp: [-0.15, 0], ArrowDown: [0.15, 0] };
  const press = (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    by(...keys[event.key]);
  };
  if (numbers.length > MAX_ATOMS) return html`<p class="help">${numbers.length} atoms are too many for a picture. Download them.</p>`;
  return html`<canvas ref=${canvas} class="atoms" width=${2 * SIZE} height=${2 * SIZE} tabindex="0" role="img" onPointerMove=${move} onKeyDown=${press}
    onPointerDown=${(event) => event.target.setPointerCapture(event.pointerId)} aria-label=${`${formulaOf(numbers)}: drag or press the arrow keys to turn it`}></canvas>`;
}

function draw(element, { numbers, positions, corners, bonds, turn: [around, about] }) {
  const context = element.getContext("2d");
  const all = [...positions, ...corners];
  const middle = [0, 1, 2].map((axis) => (Math.min(...all.map((point) => point[axis])) + Math.max(...all.map((point) => point[axis]))) / 2);
  const reach = Math.max(1, ...all.map((point) => Math.hypot(...point.map((value, axis) => value - middle[axis])))) + 1;
  const scale = SIZE / reach;
  const [c1, s1, c2, s2] = [Math.cos(around), Math.sin(around), Math.cos(about), Math.sin(about)];
  const shown = (point) => {
    const [x, y, z] = point.map((value, axis) => value - middle[axis]);
    const [x2, z2] = [x * c2 + z * s2, z * c2 - x * s2];
    return [SIZE + scale * x2, SIZE - scale * (y * c1 - z2 * s1), y * s1 + z2 * c1];
  };
  const [atoms, box] = [positions.map(shown), corners.map(shown)];
  context.clearRect(0, 0, 2 * SIZE, 2 * SIZE);
  const line = (one, other, width, colour) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(one[0], one[1]);
    context.lineTo(other[0], other[1]);
    context.stroke();
  };
  const soft = getComputedStyle(element).color;
  if (box.length) for (const [one, other] of edges) line(box[one], box[other], 1.5, soft);
  // From the back to the front.
  const parts = [
    ...atoms.map((at, index) => ({ depth: at[2], index })),
    ...bonds.map((bond) => ({ depth: (atoms[bond[0]][2] + atoms[bond[1]][2]) / 2 - 0.01, bond })),
  ].sort((a, b) => a.depth - b.depth);
  for (const { index, bond } of parts) {
    if (bond) line(atoms[bond[0]], atoms[bond[1]], Math.max(2, scale * 0.14), "#8a8f98");
    else {
      const [x, y] = atoms[index];
      const radius = Math.max(2, scale * radiusOf(numbers[index]) * 0.55);
      const shade = context.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
      shade.addColorStop(0, "#ffffff");
      shade.addColorStop(0.35, colourOf(numbers[index]));
      shade.addColorStop(1, "#000000aa");
      context.fillStyle = colourOf(numbers[index]);
      context.beginPath();
      context.arc(x, y, radius, 0, 7);
      context.fill();
      context.fillStyle = shade;
      context.globalAlpha = 0.55;
      context.fill();
      context.globalAlpha = 1;
    }
  }
}
