// The part of Node that the programs use.
declare const process: { argv: string[]; stdout: { write(text: string): void } };

declare module "node:events" {
  export function getEventListeners(target: EventTarget, name: string): unknown[];
}
