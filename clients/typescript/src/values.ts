/**
 * Values that JSON has no notation for, as the server's other clients encode them: an object with the key `$zndraw`.
 * Arrays above 512 KiB are files in NumPy's format (`.npy`).
 */
import { NotSerializable } from "./errors.js";
import { parseJson, stringifyJson } from "./json.js";

/** The items of an array of numbers. */
export type ArrayData =
  | Int8Array<ArrayBuffer>
  | Uint8Array<ArrayBuffer>
  | Int16Array<ArrayBuffer>
  | Uint16Array<ArrayBuffer>
  | Int32Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer>
  | Float32Array<ArrayBuffer>
  | Float64Array<ArrayBuffer>
  | BigInt64Array<ArrayBuffer>
  | BigUint64Array<ArrayBuffer>;

type Constructor = { new (buffer: ArrayBuffer): ArrayData; readonly BYTES_PER_ELEMENT: number };

/** How the items of a dtype are kept. A complex number takes two of them; dates and durations are integers. */
interface Items {
  make: Constructor;
  width: number;
}

const TAG = "$zndraw";
const ITEMS: Readonly<Record<string, Constructor>> = {
  bool: Uint8Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  float32: Float32Array,
  float64: Float64Array,
};
const LARGE_ARRAY_BYTES = 512 * 1024;

/** The media type of a file in NumPy's format. */
export const ARRAY_TYPE = "application/x-npy";

/**
 * An array of any shape, in C order. `data` has the items: pairs of real and imaginary parts for complex numbers,
 * BigInts for 64-bit integers, dates and durations, texts for `str`, any values for `object`.
 */
export class NdArray<Data extends ArrayData | unknown[] = ArrayData | unknown[]> {
  constructor(
    /** The name of NumPy's dtype, such as `float64`. */
    readonly dtype: string,
    readonly shape: readonly number[],
    readonly data: Data,
  ) {
    const size = shape.reduce((product, length) => product * length, 1);
    const count = data.length / (dtype.startsWith("complex") ? 2 : 1);
    if (count !== size) throw new RangeError(`An array of shape [${shape.join(", ")}] has ${size} items, not ${count}`);
  }

  /** Return an array of numbers in one dimension, or in those of `shape`. */
  static of<Data extends ArrayData>(data: Data, shape: readonly number[] = [data.length]): NdArray<Data> {
    return new NdArray(dtypeOf(data), shape, data);
  }

  /** Return the items as lists of lists. */
  toNested(): unknown {
    const items = this.dtype.startsWith("complex") ? pairs(this.data as ArrayLike<number>) : Array.from<unknown>(this.data as ArrayLike<unknown>);
    const values = this.dtype === "bool" ? items.map(Boolean) : items;
    return this.shape.length === 0 ? values[0] : nested(values, [...this.shape]);
  }
}

function pairs(data: ArrayLike<number>): unknown[] {
  return Array.from({ length: data.length / 2 }, (_, index) => ({ real: data[2 * index], imag: data[2 * index + 1] }));
}

function nested(values: unknown[], shape: number[]): unknown[] {
  const [length = 0, ...rest] = shape;
  if (rest.length === 0) return values;
  const step = values.length / length;
  return Array.from({ length }, (_, index) => nested(values.slice(index * step, (index + 1) * step), rest));
}

function dtypeOf(data: ArrayData): string {
  if (data instanceof Uint8Array) return "uint8";
  const found = Object.entries(ITEMS).find(([, make]) => data instanceof make);
  if (found === undefined) throw new NotSerializable(`A ${data.constructor.name} has no dtype of NumPy`);
  return found[0];
}

/** Return a value with what was encoded in it: arrays as `NdArray`, bytes as `Uint8Array`, NaN and infinity. */
export function decode(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(decode);
  if (value === null || typeof value !== "object") return value;
  const fields = value as Record<string, unknown>;
  switch (fields[TAG]) {
    case "float":
      return Number(fields["value"]);
    case "bytes":
      return fromBase64(String(fields["data"]));
    case "complex":
      return { real: fields["real"], imag: fields["imag"] };
    case "ndarray":
      return decodeArray(fields);
    default: // a table, atoms, or the value of another codec keeps its tag
      return withDecodedParts(fields);
  }
}

function withDecodedParts(fields: Record<string, unknown>): unknown {
  const decoded = Object.entries(fields).map(([key, part]) => [key, decode(part)] as const);
  return Object.fromEntries(decoded);
}

function decodeArray(fields: Record<string, unknown>): NdArray {
  const dtype = String(fields["dtype"]);
  const shape = fields["shape"] as number[];
  const data = fields["data"];
  if (typeof data !== "string") return new NdArray(dtype, shape, (data as unknown[]).map(decode));
  return new NdArray(kept(dtype), shape, itemsOf(fromBase64(data), dtype));
}

/** Return the dtype of the items that are kept: half precision is kept as single precision. */
function kept(dtype: string): string {
  return dtype === "float16" ? "float32" : dtype;
}

function itemsOf(bytes: Uint8Array<ArrayBuffer>, dtype: string): ArrayData {
  if (dtype === "float16") return halves(bytes);
  const { make } = itemsFor(dtype);
  // A copy begins at the address that its items need.
  return new make(bytes.byteOffset % 8 === 0 && bytes.byteLength === bytes.buffer.byteLength ? bytes.buffer : bytes.slice().buffer);
}

function itemsFor(dtype: string): Items {
  if (dtype === "complex64") return { make: Float32Array, width: 8 };
  if (dtype === "complex128") return { make: Float64Array, width: 16 };
  const make = /^(datetime|timedelta)64/.test(dtype) ? BigInt64Array : ITEMS[dtype];
  if (make === undefined) throw new RangeError(`An array of ${dtype} cannot be read here: read its bytes instead`);
  return { make, width: make.BYTES_PER_ELEMENT };
}

function halves(bytes: Uint8Array<ArrayBuffer>): Float32Array<ArrayBuffer> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Float32Array.from({ length: bytes.byteLength / 2 }, (_, index) => half(view.getUint16(2 * index, true)));
}

function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Return a value for `stringifyJson`. Throws `NotSerializable` with the place of a part that cannot be encoded. */
export function encode(value: unknown, path = "payload"): unknown {
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? value : { [TAG]: "float", value: String(value) };
    case "function":
    case "symbol":
      throw new NotSerializable(`${path}: a ${typeof value} is not JSON`);
    case "object":
      return value === null ? null : encodeObject(value, path);
    default:
      return value;
  }
}

function encodeObject(value: object, path: string): unknown {
  if (Array.isArray(value)) return value.map((item, index) => (item === undefined ? null : encode(item, `${path}[${index}]`)));
  if (value instanceof Uint8Array) return { [TAG]: "bytes", data: toBase64(value) };
  if (value instanceof NdArray) return encodeArray(value, path);
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return encodeArray(NdArray.of(value as ArrayData), path);
  if (typeof (value as { toJSON?: unknown }).toJSON === "function") return encode((value as { toJSON(): unknown }).toJSON(), path);
  if (value instanceof Map || value instanceof Set || value instanceof Promise || value instanceof Error) {
    throw new NotSerializable(`${path}: a ${value.constructor.name} is not JSON. Send an object or a list`);
  }
  const entries = Object.entries(value).filter(([, part]) => part !== undefined);
  return Object.fromEntries(entries.map(([key, part]) => [key, encode(part, `${path}.${key}`)]));
}

function encodeArray(array: NdArray, path: string): unknown {
  const data = Array.isArray(array.data)
    ? array.data.map((item, index) => encode(item, `${path}[${index}]`))
    : toBase64(new Uint8Array(array.data.buffer, array.data.byteOffset, array.data.byteLength));
  return { [TAG]: "ndarray", dtype: array.dtype, shape: array.shape, data };
}

/** Return content as the value that was encoded: JSON, an array, or else its bytes. */
export function decodeContent(content: Uint8Array<ArrayBuffer>, contentType: string): unknown {
  const kind = contentType.split(";")[0]!.trim().toLowerCase();
  if (kind === "application/json") return decode(parseJson(new TextDecoder().decode(content)));
  return kind === ARRAY_TYPE ? parseNpy(content) : content;
}

/** What a job returns instead of JSON: the bytes of its result, with their type and the name of a file. */
export interface Content {
  data: Uint8Array<ArrayBuffer> | Blob;
  contentType: string;
  filename?: string;
}

/** The result of a job that is a file: `contentType` is by default that of the blob. */
export class ResultFile {
  constructor(
    readonly data: Uint8Array<ArrayBuffer> | Blob,
    readonly options: { contentType?: string; filename?: string } = {},
  ) {}
}

/** Return content for bytes, blobs, files and large arrays; undefined for other values. */
export function contentOf(value: unknown): Content | undefined {
  if (value instanceof ResultFile) {
    const type = value.data instanceof Blob ? value.data.type : "";
    const { contentType = type, filename } = value.options;
    return { data: value.data, contentType: contentType || "application/octet-stream", ...(filename && { filename }) };
  }
  if (value instanceof Uint8Array) return { data: value as Uint8Array<ArrayBuffer>, contentType: "application/octet-stream" };
  if (value instanceof Blob) return { data: value, contentType: value.type || "application/octet-stream" };
  const array = ArrayBuffer.isView(value) && !(value instanceof DataView) ? NdArray.of(value as ArrayData) : value;
  if (array instanceof NdArray && !Array.isArray(array.data) && array.data.byteLength > LARGE_ARRAY_BYTES) {
    return { data: formatNpy(array as NdArray<ArrayData>), contentType: ARRAY_TYPE };
  }
  return undefined;
}

const MAGIC = "\x93NUMPY";
const KINDS: Readonly<Record<string, string>> = { b: "bool", i: "int", u: "uint", f: "float", c: "complex" };

/** Return the array of a file in NumPy's format, in C order. Throws a RangeError for a dtype that has no numbers or texts. */
export function parseNpy(content: Uint8Array<ArrayBuffer>): NdArray {
  const view = new DataView(content.buffer, content.byteOffset, content.byteLength);
  if (latin1(content.subarray(0, 6)) !== MAGIC) throw new RangeError("The content is no file in NumPy's format");
  const isFirst = content[6] === 1;
  const start = isFirst ? 10 : 12;
  const end = start + (isFirst ? view.getUint16(8, true) : view.getUint32(8, true));
  const header = latin1(content.subarray(start, end));
  const descr = /'descr':\s*'([<>|=])(\w)([^']*)'/.exec(header);
  const shapeText = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1];
  if (descr === null || shapeText === undefined) throw new RangeError(`An array with the header ${header.trim()} cannot be read here`);
  const shape = shapeText.split(",").filter((part) => part.trim() !== "").map(Number);
  const size = shape.reduce((product, length) => product * length, 1);
  const [, order, kind, rest] = descr as unknown as [string, string, string, string];
  const bytes = content.slice(end);
  const isFortran = /'fortran_order':\s*True/.test(header);
  if (kind === "U") return new NdArray("str", shape, inCOrder(texts(bytes, size, Number(rest), order), shape, 1, isFortran));
  const dtype = dtypeNamed(kind, rest);
  const { width, unit } = widths(kind, rest);
  if (bytes.byteLength < size * width) throw new RangeError(`${size * width} bytes should follow the header, not ${bytes.byteLength}`);
  const used = bytes.slice(0, size * width);
  if (order === ">") swapBytes(used, unit);
  const items = itemsOf(used, dtype);
  return new NdArray(kept(dtype), shape, inCOrder(items, shape, kind === "c" ? 2 : 1, isFortran));
}

function dtypeNamed(kind: string, rest: string): string {
  if (kind === "M" || kind === "m") return `${kind === "M" ? "datetime" : "timedelta"}64${rest.slice(1)}`;
  const name = KINDS[kind];
  if (name === undefined) throw new RangeError(`An array of the type ${kind}${rest} cannot be read here: read its bytes instead`);
  return name === "bool" ? name : `${name}${8 * Number(rest)}`;
}

function widths(kind: string, rest: string): { width: number; unit: number } {
  const width = Number.parseInt(rest, 10);
  return { width, unit: kind === "c" ? width / 2 : width };
}

function texts(bytes: Uint8Array, count: number, length: number, order: string): string[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: count }, (_, item) => {
    const points = Array.from({ length }, (_, index) => view.getUint32(4 * (item * length + index), order !== ">"));
    const used = points.findLastIndex((point) => point !== 0) + 1;
    return String.fromCodePoint(...points.slice(0, used));
  });
}

function swapBytes(bytes: Uint8Array, width: number): void {
  for (let at = 0; at < bytes.length; at += width) bytes.subarray(at, at + width).reverse();
}

/** Return items in C order. Those of a file in Fortran's order have the first index running fastest. */
function inCOrder<Items extends ArrayData | unknown[]>(items: Items, shape: number[], parts: number, isFortran: boolean): Items {
  if (!isFortran || shape.length < 2) return items;
  const sorted = items.slice() as unknown[];
  const index = shape.map(() => 0);
  const strides = shape.map((_, axis) => shape.slice(0, axis).reduce((product, length) => product * length, parts));
  for (let at = 0; at < sorted.length; at += parts) {
    const from = index.reduce((sum, one, axis) => sum + one * strides[axis]!, 0);
    for (let part = 0; part < parts; part += 1) sorted[at + part] = (items as unknown[])[from + part];
    for (let axis = shape.length - 1; axis >= 0 && ++index[axis]! >= shape[axis]!; axis -= 1) index[axis] = 0;
  }
  return sorted as Items;
}

/** Return a file in NumPy's format. */
export function formatNpy(array: NdArray<ArrayData>): Uint8Array<ArrayBuffer> {
  const shape = array.shape.length === 1 ? `${array.shape[0]},` : array.shape.join(", ");
  const header = `{'descr': '${descrOf(array.dtype)}', 'fortran_order': False, 'shape': (${shape}), }`;
  const padded = `${header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 11)}\n`;
  const data = new Uint8Array(array.data.buffer, array.data.byteOffset, array.data.byteLength);
  const file = new Uint8Array(10 + padded.length + data.length);
  file.set(Array.from(MAGIC, (letter) => letter.charCodeAt(0)));
  file.set([1, 0, padded.length & 0xff, padded.length >> 8], 6);
  file.set(new TextEncoder().encode(padded), 10);
  file.set(data, 10 + padded.length);
  return file;
}

function descrOf(dtype: string): string {
  const date = /^(datetime|timedelta)64(.*)$/.exec(dtype);
  if (date !== null) return `<${date[1] === "datetime" ? "M" : "m"}8${date[2]}`;
  const [, name, bits] = /^([a-z]+)(\d*)$/.exec(dtype) ?? [];
  const kind = Object.entries(KINDS).find(([, known]) => known === name)?.[0];
  if (kind === undefined) throw new NotSerializable(`An array of ${dtype} has no file format`);
  const width = kind === "b" ? 1 : Number(bits) / 8;
  return `${width === 1 ? "|" : "<"}${kind}${width}`;
}

function latin1(bytes: Uint8Array): string {
  return String.fromCharCode(...bytes);
}

/** Return bytes as standard base64. */
export function toBase64(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += 0x8000) parts.push(String.fromCharCode(...bytes.subarray(at, at + 0x8000)));
  return btoa(parts.join(""));
}

/** Return the bytes of standard base64. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Return a value as JSON: what `encode` and `stringifyJson` make of it. */
export function toJson(value: unknown, path = "payload"): string {
  try {
    return stringifyJson(encode(value, path));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new NotSerializable(`${path}: it contains itself, or is nested too deeply`, { cause: error });
  }
}
