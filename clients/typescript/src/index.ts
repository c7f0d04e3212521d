/** A client of zndraw-joblib for browsers and Node; the worker is in `zndraw-joblib/worker`. */
export { Connection, newKey } from "./connection.js";
export type { AnswerOf, CallOptions, ConnectionOptions, OperationOptions, PathOf, Token } from "./connection.js";
export * from "./errors.js";
export { parseJson, stringifyJson } from "./json.js";
export * from "./problems.js";
export { GroupHandle, hasEnded, Queue, TaskHandle } from "./queue.js";
export type { GroupOptions, KeyOptions, NewTask, Payload, QueueOptions, StoredContent, SubmitOptions, TaskOptions, WaitOptions } from "./queue.js";
export type { FollowOptions } from "./streams.js";
export type * from "./types.js";
export { decode, encode, formatNpy, NdArray, parseNpy } from "./values.js";
export type { ArrayData } from "./values.js";
