// A structure of atoms as a picture that can be rotated: spheres and bonds on a canvas, drawn from back to front.
import { count } from "../format.js";
import { html, useEffect, useMemo, useRef, useSignal } from "../lib.js";
import { drawn } from "../theme.js";

const SYMBOLS = ("X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb "
  + "Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr").split(" ");
// Six digits for each element, and its covalent radius in pm.
const COLOURS =
  "ff0000ffffffd9ffffcc80ffc2ff00ffb5b59090903050f8ff0d0d90e050b3e3f5ab5cf28aff00bfa6a6f0c8a0ff8000ffff301ff01f80d1e38f40d43dff00"
  + "e6e6e6bfc2c7a6a6ab8a99c79c7ac7e06633f090a050d050c880337d80b0c28f8f668f8fbd80e3ffa100a629295cb8d1702eb000ff0094ffff94e0e073c2c9"
  + "54b5b53b9e9e248f8f0a7d8c006985c0c0c0ffd98fa675736680809e63b5d47a00940094429eb057178f00c90070d4ffffffc7d9ffc7c7ffc7a3ffc78fffc7"
  + "61ffc745ffc730ffc71fffc700ff9c00e67500d45200bf3800ab244dc2ff4da6ff2194d6267dab266696175487d0d0e0ffd123b8b8d0a6544d5759619e4fb5"
  + "ab5c00754f45428296420066007d0070abfa00baff00a1ff008fff0080ff006bff545cf2785ce38a4fe3a136d4b31fd4b31fbab30da6bd0d87c70066";
const RADII = (
  "20 31 28 128 96 84 76 71 66 57 58 166 141 121 111 107 105 102 106 203 176 170 160 153 139 139 132 126 124 132 122 122 "
  + "120 119 120 120 116 220 195 190 175 164 154 147 146 142 139 145 144 142 139 139 138 139 140 244 215 207 204 203 201 199 "
  + "198 198 196 194 192 192 189 190 187 187 175 170 162 151 144 141 136 136 132 145 146 148 140 150 150 260 221 215 206 200 "
  + "196 190 187 180 169 200 200 200 200 200 200 200").split(" ").map(Number);
const MAX_ATOMS = 20_000;
const MAX_BONDED = 4000;
const HEIGHT = 320;
const colourOf = (number) => `#${COLOURS.slice(number * 6, number * 6 + 6) || "ff1493"}`;
const radiusOf = (number) => (RADII[number] ?? 150) / 100;
const EDGES = [[0, 1], [0, 2], [0, 4], [1, 3], [1, 5], [2, 3], [2, 6], [3, 7], [4, 5], [4, 6], [5, 7], [6, 7]];

// As Hill writes it: C and H first, then the others by name.
export function formulaOf(numbers) {
  const counts = {};
  for (const number of numbers) counts[SYMBOLS[number] ?? "X"] = (counts[SYMBOLS[number] ?? "X"] ?? 0) + 1;
  const first = counts.C ? ["C", "H"] : [];
  const names = [...first.filter((name) => counts[name]), ...Object.keys(counts).filter((name) => !first.includes(name)).sort()];
  return names.map((name) => name + (counts[name] > 1 ? counts[name] : "")).join("");
}

// Pairs of atoms that are closer than the sum of their radii and some more; by cells, so that not all pairs are compared.
function bondsOf(numbers, points) {
  if (points.length > MAX_BONDED) return [];
  const size = 2.4 * Math.max(...numbers.map(radiusOf), 0.3);
  const cells = new Map();
  const cellOf = (point) => point.map((value) => Math.floor(value / size));
  points.forEach((point, index) => {
    const key = cellOf(point).join();
    cells.set(key, [...(cells.get(key) ?? []), index]);
  });
  const bonds = [];
  points.forEach((point, index) => {
    const [x, y, z] = cellOf(point);
    for (let near = 0; near < 27; near += 1) {
      for (const other of cells.get([x + (near % 3) - 1, y + (Math.floor(near / 3) % 3) - 1, z + Math.floor(near / 9) - 1].join()) ?? []) {
        const reach = 1.2 * (radiusOf(numbers[index]) + radiusOf(numbers[other]));
        if (other > index && Math.hypot(...point.map((value, axis) => value - points[other][axis])) < reach) bonds.push([index, other]);
      }
    }
  });
  return bonds;
}

const product = (a, b) => a.map((row) => [0, 1, 2].map((column) => row.reduce((sum, value, at) => sum + value * b[at][column], 0)));
const about = (axis, angle) => {
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  return axis === "x" ? [[1, 0, 0], [0, cos, -sin], [0, sin, cos]] : [[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]];
};
// From the side and a little from above, with z upwards.
const START = product(about("x", 0.35), product(about("y", -0.5), [[1, 0, 0], [0, 0, 1], [0, -1, 0]]));

// What is drawn: the atoms, their bonds and the corners of the cell, around the middle of all of them.
function sceneOf(numbers, positions, cell) {
  const kinds = Array.from(numbers, Number);
  const atoms = kinds.map((_, index) => [0, 1, 2].map((axis) => Number(positions[index * 3 + axis])));
  const vectors = [0, 1, 2].map((row) => [0, 1, 2].map((axis) => Number(cell?.[row * 3 + axis] ?? 0)));
  const hasCell = vectors.every((vector) => Math.hypot(...vector) > 1e-6);
  const corners = hasCell ? Array.from({ length: 8 }, (_, at) => [0, 1, 2].map((axis) => vectors.reduce((sum, vector, row) => sum + (at & (1 << row) ? vector[axis] : 0), 0))) : [];
  const all = [...atoms, ...corners];
  const middle = [0, 1, 2].map((axis) => all.reduce((sum, point) => sum + point[axis], 0) / Math.max(1, all.length));
  const centred = (points) => points.map((point) => point.map((value, axis) => value - middle[axis]));
  const extent = Math.max(1, ...all.map((point) => Math.hypot(...point.map((value, axis) => value - middle[axis])))) + 1;
  return { kinds, atoms: centred(atoms), corners: centred(corners), bonds: bondsOf(kinds, atoms), extent };
}

function paint(canvas, { kinds, atoms, corners, bonds, extent }, { turn, zoom }) {
  const [width, height] = [canvas.clientWidth, HEIGHT];
  Object.assign(canvas, { width: width * devicePixelRatio, height: height * devicePixelRatio });
  const context = canvas.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  const line = getComputedStyle(canvas).color;
  const scale = (zoom * Math.min(width, height)) / (2 * extent);
  const placed = (point) => {
    const [x, y, depth] = turn.map((row) => row[0] * point[0] + row[1] * point[1] + row[2] * point[2]);
    return { x: width / 2 + x * scale, y: height / 2 - y * scale, depth };
  };
  const stroke = (from, to, colour, thickness) => {
    Object.assign(context, { strokeStyle: colour, lineWidth: thickness, lineCap: "round" });
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.stroke();
  };
  const edges = corners.map(placed);
  if (edges.length) for (const [from, to] of EDGES) stroke(edges[from], edges[to], line, 1);
  const spheres = atoms.map((point, index) => ({ ...placed(point), kind: kinds[index] }));
  const parts = [...spheres];
  for (const [one, other] of bonds) {
    const [from, to] = [spheres[one], spheres[other]];
    const middle = { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2, depth: (from.depth + to.depth) / 2 };
    for (const end of [from, to]) parts.push({ bond: [end, middle], kind: end.kind, depth: (end.depth + middle.depth) / 2 - 0.01 });
  }
  for (const part of parts.sort((one, other) => one.depth - other.depth)) {
    if (part.bond) {
      stroke(...part.bond, line, Math.max(2, scale * 0.24));
      stroke(...part.bond, colourOf(part.kind), Math.max(1, scale * 0.24 - 1.5));
      continue;
    }
    const radius = Math.max(1.5, radiusOf(part.kind) * scale * 0.45);
    Object.assign(context, { fillStyle: colourOf(part.kind), strokeStyle: line, lineWidth: 0.8 });
    context.beginPath();
    context.arc(part.x, part.y, radius, 0, 2 * Math.PI);
    context.fill();
    context.stroke();
    if (radius < 3) continue;
    context.fillStyle = "rgb(255 255 255 / 55%)";
    context.beginPath();
    context.arc(part.x - radius * 0.3, part.y - radius * 0.35, radius * 0.25, 0, 2 * Math.PI);
    context.fill();
  }
}

const KEYS = { ArrowLeft: ["y", -0.15], ArrowRight: ["y", 0.15], ArrowUp: ["x", -0.15], ArrowDown: ["x", 0.15] };

// `numbers`, `positions` and `cell` are arrays as { shape, data }.
export function Structure({ numbers, positions, cell }) {
  const canvas = useRef();
  const view = useSignal({ turn: START, zoom: 1 });
  const size = useSignal(0);
  const scene = useMemo(() => (numbers.data && positions.data && numbers.data.length <= MAX_ATOMS ? sceneOf(numbers.data, positions.data, cell?.data) : null), [numbers.data, positions.data, cell?.data]);
  useEffect(() => {
    if (!canvas.current) return undefined;
    const observer = new ResizeObserver(() => (size.value = canvas.current.clientWidth));
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, [scene === null]);
  useEffect(() => {
    if (!scene || !canvas.current) return undefined;
    const frame = requestAnimationFrame(() => canvas.current && paint(canvas.current, scene, view.value));
    return () => cancelAnimationFrame(frame);
  }, [scene, view.value, size.value, drawn.value]);
  if (!scene) return html`<p class="help">The page draws no structure of more than ${count(MAX_ATOMS)} atoms, or with positions that it cannot read.</p>`;
  const turn = (axis, angle) => (view.value = { ...view.value, turn: product(about(axis, angle), view.value.turn) });
  const zoom = (factor) => (view.value = { ...view.value, zoom: Math.min(10, Math.max(0.3, view.value.zoom * factor)) });
  const drag = (event) => {
    if (!event.buttons) return;
    turn("y", event.movementX * 0.01);
    turn("x", event.movementY * 0.01);
  };
  const press = (event) => {
    const move = KEYS[event.key];
    if (move) turn(...move);
    else if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.25 : 0.8);
    else return;
    event.preventDefault();
  };
  const counts = new Map();
  for (const kind of scene.kinds) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const elements = [...counts].map(([kind, amount]) => [SYMBOLS[kind] ?? String(kind), amount, colourOf(kind)]);
  return html`<div class="structure"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${`Structure of ${elements.map(([symbol, amount]) => `${amount} ${symbol}`).join(", ")}`}
      onPointerDown=${(event) => event.target.setPointerCapture(event.pointerId)} onPointerMove=${drag} onKeyDown=${press}></canvas>
    <div class="actions"><ul class="elements">${elements.map(([symbol, amount, colour]) => html`<li key=${symbol}><span style=${{ background: colour }}></span>${symbol} ${count(amount)}</li>`)}</ul>
      <button type="button" class="small" aria-label="Zoom in" onClick=${() => zoom(1.25)}>+</button>
      <button type="button" class="small" aria-label="Zoom out" onClick=${() => zoom(0.8)}>−</button>
      <button type="button" class="small" onClick=${() => (view.value = { turn: START, zoom: 1 })}>Reset</button></div>
    <p class="help">Drag, or use the arrow keys and + and −.</p></div>`;
}
