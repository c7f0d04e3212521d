// JSON Schemas as forms: what kind of field a schema needs, what the field holds, and the payload that it makes.
import { parseExact, stringify } from "./json.js";

const MAX_DEPTH = 6;
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
// What answers have in the place of a secret value.
const MASK = "**********";
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && value.constructor === Object;
const escaped = (name) => name.replaceAll("~", "~0").replaceAll("/", "~1");
export const below = (pointer, name) => `${pointer}/${escaped(String(name))}`;

// Follow references within the schema, and the only part of `allOf`; the words beside them stay.
function resolved(schema, root) {
  let current = isObject(schema) ? schema : {};
  for (let hop = 0; hop < 20; hop += 1) {
    const { $ref: ref, allOf, ...beside } = current;
    if (typeof ref === "string" && ref.startsWith("#/")) {
      const parts = ref.slice(2).split("/").map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
      const target = parts.reduce((at, part) => at?.[part], root);
      if (!isObject(target)) return null;
      current = { ...target, ...beside };
    } else if (Array.isArray(allOf) && allOf.length === 1 && isObject(allOf[0])) current = { ...allOf[0], ...beside };
    else return current;
  }
  return null;
}

// A schema without its alternative null, and whether it had one.
function withoutNull(schema, root) {
  for (const word of ["anyOf", "oneOf"]) {
    const parts = Array.isArray(schema[word]) ? schema[word] : [];
    const others = parts.filter((part) => part?.type !== "null");
    if (others.length !== 1 || others.length === parts.length) continue;
    const { [word]: _, ...beside } = schema;
    return [resolved({ ...others[0], ...beside }, root), true];
  }
  if (Array.isArray(schema.type) && schema.type.length === 2 && schema.type.includes("null")) {
    return [{ ...schema, type: schema.type.find((type) => type !== "null") }, true];
  }
  return [schema, false];
}

const HARD = ["anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "dependentSchemas", "prefixItems"];

// Return { kind, schema, isNullable, … } of a schema. What has no field of its own has the kind "json".
export function nodeOf(schema, root = schema, depth = 0) {
  const first = resolved(schema, root);
  if (!first) return { kind: "json", schema: {}, isNullable: false };
  const [nonNull, isNullable] = withoutNull(first, root);
  if (!nonNull) return { kind: "json", schema: first, isNullable: false };
  const node = { schema: nonNull, isNullable };
  if (nonNull.const !== undefined) return { ...node, kind: "choice", options: [nonNull.const] };
  if (Array.isArray(nonNull.enum) && nonNull.enum.length) return { ...node, kind: "choice", options: nonNull.enum };
  if (HARD.some((word) => nonNull[word] !== undefined) || depth > MAX_DEPTH) return { ...node, kind: "json" };
  if (["string", "integer", "number", "boolean"].includes(nonNull.type)) return { ...node, kind: nonNull.type };
  if (nonNull.type === "array" && isObject(nonNull.items)) return { ...node, kind: "array", item: nodeOf(nonNull.items, root, depth + 1) };
  const isGroup = (nonNull.type === "object" || nonNull.type === undefined) && isObject(nonNull.properties) && Object.keys(nonNull.properties).length;
  if (!isGroup) return { ...node, kind: "json" };
  const needed = new Set(Array.isArray(nonNull.required) ? nonNull.required : []);
  const fields = Object.entries(nonNull.properties).map(([name, field]) => ({ name, isRequired: needed.has(name), node: nodeOf(field, root, depth + 1) }));
  return { ...node, kind: "object", fields };
}

// The provider of the choices of a field, by the word `x-provider` of its schema: { name, params, items, value, label }. Else null.
export function providerOf({ schema, kind }) {
  const { "x-provider": word } = schema;
  const { provider: name, ...rest } = isObject(word) ? word : { provider: word };
  return ["string", "integer", "number"].includes(kind) && /^([^:/]+:){1,2}[^:/]+$/.test(name) ? { ...rest, name } : null;
}

const atPath = (value, path) => String(path).split(".").reduce((at, part) => at?.[part], value);
const MAX_CHOICES = 1000;

// The choices in the answer of a provider, [[text of the draft, label], …]. The answer is a list, or has it at the path `items`.
// Of an item that is an object, the value is at the path `value`, and its label at `label`.
export function choicesIn(answer, { items = "items", value = "value", label = "label" }) {
  const list = Array.isArray(answer) ? answer : atPath(answer, items);
  if (!Array.isArray(list)) throw new Error(`The answer is no list, and has none at ${items}.`);
  const textOf = (item) => (typeof item === "string" ? item : stringify(item));
  return list.slice(0, MAX_CHOICES).map((item) => {
    const content = isObject(item) ? atPath(item, value) : item;
    if (content === undefined) throw new Error(`An item of the answer has no ${value}.`);
    return [textOf(content), textOf((isObject(item) ? atPath(item, label) : undefined) ?? content)];
  });
}

// Whether only the job may see the values of a schema.
export const isSecret = (schema) => schema.writeOnly === true || schema.format === "password";

// A payload of an answer without the masks of secret values, and the pointers to these: { payload, pointers }.
// An item of a list leaves undefined, so that the others keep their places.
export function withoutMasks(schema, payload) {
  const pointers = [];
  const hasSecret = (part) => part !== null && typeof part === "object" && (isSecret(part) || Object.values(part).some(hasSecret));
  const strip = (value, pointer) => {
    if (value === MASK) return void pointers.push(pointer);
    if (Array.isArray(value)) return value.map((item, index) => strip(item, below(pointer, index)));
    if (!isObject(value)) return value;
    const parts = Object.entries(value).map(([name, part]) => [name, strip(part, below(pointer, name))]);
    return Object.fromEntries(parts.filter(([, part]) => part !== undefined));
  };
  return hasSecret(schema) ? { payload: strip(payload, ""), pointers } : { payload, pointers };
}

let lastKey = 0;
export const itemOf = (draft) => ({ key: (lastKey += 1), draft });
const fits = { array: Array.isArray, object: isObject, string: (value) => typeof value === "string", boolean: (value) => typeof value === "boolean" };

// Return what the field of a node holds for a value; for undefined, with `hasDefaults`, the schema's default.
// Undefined if the field cannot hold the value: then only JSON can.
export function draftOf(node, initial, hasDefaults = false) {
  // The default of a secret is a mask in the schemas of pydantic.
  const byDefault = hasDefaults && !(isSecret(node.schema) && node.schema.default === MASK) ? node.schema.default : undefined;
  const value = initial === undefined ? byDefault : initial;
  const isEmpty = value === undefined || (value === null && node.isNullable);
  if (!isEmpty && fits[node.kind]?.(value) === false) return undefined;
  if (node.kind === "object") return groupDraft(node, isEmpty ? {} : value, hasDefaults);
  if (node.kind === "array") {
    // A secret that is left out of a list is null in JSON.
    const items = (isEmpty ? [] : value).map((item) => draftOf(node.item, item === null && isSecret(node.item.schema) ? undefined : item));
    return items.includes(undefined) ? undefined : items.map(itemOf);
  }
  if (isEmpty) return "";
  if (node.kind === "choice") {
    const index = node.options.findIndex((option) => stringify(option) === stringify(value));
    return index < 0 ? undefined : String(index);
  }
  if (node.kind === "json") return stringify(value, 2);
  if (node.kind === "string") return value;
  const text = stringify(value);
  return node.kind === "boolean" || NUMBER.test(text) ? text : undefined;
}

function groupDraft(node, value, hasDefaults) {
  const fields = {};
  const rest = { ...value };
  for (const { name, node: field } of node.fields) {
    fields[name] = draftOf(field, Object.hasOwn(value, name) ? value[name] : undefined, hasDefaults);
    if (fields[name] === undefined) return undefined;
    delete rest[name];
  }
  return { fields, rest };
}

// Return the value of a draft; undefined for a field that is not given. `problems` gets what is no JSON.
export function valueOf(node, draft, isRequired, problems, pointer = "") {
  if (node.kind === "object") return groupValue(node, draft, isRequired, problems, pointer);
  if (node.kind === "array") {
    if (!draft.length && !isRequired) return undefined;
    return draft.map((item, index) => valueOf(node.item, item.draft, true, problems, below(pointer, index)) ?? null);
  }
  // An empty text is not given; JSON can say "".
  if (node.kind === "string") return draft === "" ? absent(node, isRequired) : draft;
  const text = draft.trim();
  if (text === "") return absent(node, isRequired);
  if (node.kind === "choice") return node.options[Number(text)];
  if (node.kind !== "json" && node.kind !== "boolean" && !NUMBER.test(text)) {
    problems.push({ pointer, message: `${text} is no number. Write it like 10, -0.5 or 1e-3.` });
    return undefined;
  }
  try {
    return parseExact(text);
  } catch (error) {
    problems.push({ pointer, message: `This is no JSON: ${error.message}` });
    return undefined;
  }
}

const absent = (node, isRequired) => (isRequired && node.isNullable ? null : undefined);

function groupValue(node, draft, isRequired, problems, pointer) {
  const fields = {};
  for (const { name, node: field, isRequired: isNeeded } of node.fields) {
    const value = valueOf(field, draft.fields[name], isNeeded, problems, below(pointer, name));
    if (value !== undefined) fields[name] = value;
  }
  Object.assign(fields, draft.rest);
  return Object.keys(fields).length || isRequired ? fields : undefined;
}

function pointersOf(node, draft, pointer = "", pointers = new Set()) {
  pointers.add(pointer);
  if (node.kind === "object") for (const { name, node: field } of node.fields) pointersOf(field, draft.fields[name], below(pointer, name), pointers);
  if (node.kind === "array") draft.forEach((item, index) => pointersOf(node.item, item.draft, below(pointer, index), pointers));
  return pointers;
}

// Return the messages by the pointer of the field that shows them: the one that they name, or the one around it.
// Those of the whole payload have the pointer "".
export function placed(problems, node, draft) {
  const pointers = pointersOf(node, draft);
  const byPointer = {};
  for (const { pointer, message } of problems) {
    const missing = /^"(.*)" is a required property$/.exec(message)?.[1];
    let at = missing !== undefined && pointers.has(below(pointer, missing)) ? below(pointer, missing) : pointer;
    const isMoved = at !== pointer;
    while (!pointers.has(at)) at = at.slice(0, at.lastIndexOf("/"));
    const inside = isMoved ? "" : pointer.slice(at.length);
    (byPointer[at] ??= []).push(isMoved ? "A value is required." : inside ? `${inside}: ${message}` : message);
  }
  return byPointer;
}

const LIMITS = [["minimum", "at least"], ["exclusiveMinimum", "more than"], ["maximum", "at most"], ["exclusiveMaximum", "less than"], ["multipleOf", "a multiple of"]];

// What a schema says about its values, for the help of the field.
export function hintOf({ schema, kind }) {
  const parts = LIMITS.filter(([word]) => schema[word] !== undefined).map(([word, text]) => `${text} ${schema[word]}`);
  if (schema.minLength > 0) parts.push(`at least ${schema.minLength} characters`);
  if (schema.maxLength !== undefined) parts.push(`at most ${schema.maxLength} characters`);
  if (schema.minItems > 0) parts.push(`at least ${schema.minItems} items`);
  if (schema.maxItems !== undefined) parts.push(`at most ${schema.maxItems} items`);
  if (schema.pattern) parts.push(`like ${schema.pattern}`);
  if (schema.format) parts.push(schema.format);
  return [kind === "choice" ? null : kind === "json" ? "JSON" : kind, ...parts].filter(Boolean).join(", ");
}
